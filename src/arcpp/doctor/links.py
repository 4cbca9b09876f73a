"""Advice on copies between devices, and on what arcpp's links do about those that fail."""

from __future__ import annotations

from arcpp.link.ring import is_supported
from arcpp.probe import child
from arcpp.settings import Settings, variable
from arcpp.units import MiB

from .copies import DeviceCheck, PathResult
from .facts import Facts
from .finding import ADVICE, BROKEN, ELSEWHERE, UNCHECKED, Found

CORRUPT, REFUSED, SLOW, RIGHT = "corrupt", "refused", "slow", "right"
_SLOW_GB_S = 1.0
_PREFILL = 5 * MiB  # a boundary of a few hundred tokens
_VERIFIED = f"{variable('link_verification')}=device"
_UNSET_LINK = f"unset {variable('link')}"
_REPAIR = "update the driver, try another slot, and report it"


def verdict(path: PathResult) -> str:
    """The worst that was found on ``path``: CORRUPT, REFUSED, SLOW or RIGHT."""
    if path.wrong:
        return CORRUPT
    if path.errors:
        return REFUSED
    slowest = _slowest(path)
    host_only = path.path[0].startswith("cpu")
    return SLOW if slowest is not None and slowest < _SLOW_GB_S and not host_only else RIGHT


def what_arcpp_does(path: PathResult, settings: Settings) -> str:
    """What a link over ``path`` does about its verdict, in one sentence."""
    found = verdict(path)
    if found == CORRUPT:
        return _about_corrupt(path, settings)
    if found == REFUSED:
        return "arcpp ends a start or a hop over it with that error, and does not hang"
    if found == SLOW:
        return f"arcpp serves over it, a boundary of 5 MiB in about {_milliseconds(path):.0f} ms"
    return f"arcpp uses it as it is: {link_in_words(settings)}"


def link_in_words(settings: Settings) -> str:
    """How boundaries travel with ``settings`` on this machine, and what is checked of them."""
    if _is_gloo(settings):
        return "gloo, through sockets and host memory, content not verified"
    checked = settings.link_verification or "descriptor, device where the check at start fails"
    way = "a ring in shared memory, through host memory"
    if settings.link == "p2p":
        way = "from card to card where a content check at start passes, else through host memory"
    return f"{way}, verification {checked}"


def links(facts: Facts) -> Found:
    """On the settings of links themselves."""
    if facts.settings_error is not None:
        yield BROKEN, f"no host would start: {facts.settings_error}", "mend or unset it"
        return
    if facts.settings.link == "gloo":
        yield ADVICE, "the setting link is gloo, which is slow and for comparison", _UNSET_LINK
    if facts.settings.link_verification == "off":
        yield (
            ADVICE,
            "the setting link_verification is off: shapes of what arrives are not checked",
            f"unset {variable('link_verification')}; descriptor costs next to nothing",
        )


def copies(facts: Facts) -> Found:
    """On every path that was checked; where torch cannot be asked, none was."""
    if not facts.copies:
        yield UNCHECKED, "no copy was tried: it takes a torch that works", ELSEWHERE
    for check in facts.copies:
        if check.outcome.status != child.OK:
            yield (
                BROKEN,
                f"copies of {check.device} did not end: {check.outcome.detail}",
                "reset the card or reboot; then look at dmesg for xe or i915",
            )
            continue
        for path in check.paths:
            yield from _copy_faults(path, facts.settings)
        yield from _allocation_faults(check)


def _copy_faults(path: PathResult, settings: Settings) -> Found:
    way, found = " -> host -> ".join(path.path), verdict(path)
    does = what_arcpp_does(path, settings)
    if path.wrong:
        sizes = ", ".join(f"{size:,}" for size in path.wrong)
        says = f"{way}: corrupt: bytes differ after a copy of {sizes} bytes"
        yield BROKEN, says, f"{does}; {_REPAIR}"
    if path.errors:
        size, reason = next(iter(path.errors.items()))
        repair = "update the driver; reset the card or reboot if it says device lost"
        says = f"{way}: refused: a copy of {size:,} bytes failed: {reason}"
        yield BROKEN, says, repair if found == CORRUPT else f"{does}; {repair}"
    if found == SLOW:
        repair = "check that the card runs at its PCIe width and speed (lspci -vv, LnkSta)"
        yield ADVICE, f"{way}: slow: only {_slowest(path)} GB/s", f"{does}; {repair}"


def _about_corrupt(path: PathResult, settings: Settings) -> str:
    if len(path.path) == 1:
        return "do not serve on it: weights arrive changed too, and arcpp verifies hops only"
    if _is_gloo(settings):
        way = _UNSET_LINK if settings.link == "gloo" else "this machine has no other link"
        return f"do not serve over it: gloo does not verify content ({way})"
    if settings.link_verification == "device":
        return (
            "arcpp verifies every hop on both devices (link_verification is device): one that "
            "arrives changed ends in an error, not in wrong text"
        )
    if settings.link_verification is None:
        return (
            "arcpp checks a link's copies up to 5 MiB at start, and verifies every hop on both "
            f"devices if one is wrong; set {_VERIFIED} to verify in any case"
        )
    level = settings.link_verification
    return f"arcpp would not notice (link_verification is {level}): set {_VERIFIED}"


def _allocation_faults(check: DeviceCheck) -> Found:
    if check.trial_reason is not None:
        does = "stop other programs on the card; reset it if it stays"
        yield ADVICE, f"{check.device}: an allocation of 1 GiB failed: {check.trial_reason}", does
    if check.free_moved is False:
        yield (
            ADVICE,
            f"{check.device}: the free figure does not move while memory is held",
            f"declare what others use: --reserve {check.device}=SIZE",
        )
    if check.single_allocation is False:
        yield (
            ADVICE,
            f"{check.device}: one allocation above 4 GiB fails",
            "keep a stage's cache below 4 GiB (vLLM from 0.29 allocates it at once), or spread "
            "the model over more stages",
        )


def _slowest(path: PathResult) -> float | None:
    rates = [rate for rate in (path.to_device_gb_s, path.to_host_gb_s) if rate is not None]
    return min(rates, default=None)


def _milliseconds(path: PathResult) -> float:
    """Of a boundary of _PREFILL bytes, one copy after the other."""
    rates = [rate for rate in (path.to_device_gb_s, path.to_host_gb_s) if rate]
    return sum(_PREFILL / rate / 1e6 for rate in rates)


def _is_gloo(settings: Settings) -> bool:
    return settings.link == "gloo" or not is_supported()
