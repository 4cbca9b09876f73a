"""From what is known of an incident (exception, exit code, text) to a fault."""

from __future__ import annotations

import signal
from collections.abc import Iterator

from arcpp.errors import DeadlineExceeded, LinkCorrupt, NonFinite, PeerLost, StateCorrupt

from .fault import Fault, FaultKind, nearness, placed, shortened
from .patterns import DIED, FINITE, HOST_MEMORY, LINK, PATTERNS, PEER, STALLED, STATE

_TEXT = 64 * 1024  # characters of text that are looked at, from its end
_LINE = 2000  # characters of a line that are looked at, from its start and from its end
_LINKS = 32  # exceptions of a chain that are looked at


def classify(
    error: BaseException | None = None,
    *,
    exit_code: int | None = None,
    text: str = "",
    device: str | None = None,
    stage: int | None = None,
    rank: int | None = None,
    step: int | None = None,
) -> Fault:
    """The fault behind ``error``, an exit code, or what was written.

    error: with its notes, causes and contexts; types of runtimes are known by name. exit_code:
    as of subprocess, below 0 for a signal; above 128 it is read as a shell's. text: what the
    process wrote last, or an exception of another process as text. The most telling of them
    counts. device, stage, rank, step: where it happened. Never raises.
    """
    found = [fault for one in _chain(error) if (fault := _of_exception(one)) is not None]
    found += _of_text(text)
    if exit_code is not None:
        found.append(_of_exit(exit_code, text))
    if not found and error is not None:
        advice = "an error that arcpp cannot place: see the log above"
        found = [Fault(FaultKind.STAGE_FAILED, _said(error), advice)]
    if not found:
        seen = _last_line(text) or "no reason was given"
        kind = FaultKind.STAGE_FAILED
        found = [Fault(kind, seen, "an error that arcpp cannot place: see the log above")]
    return placed(min(found, key=nearness), device, stage, rank, step)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """``error``, what caused it and what it happened in, and members of groups, each once."""
    waiting, seen = [error], set[int]()
    while waiting and len(seen) < _LINKS:
        one = waiting.pop(0)
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        if isinstance(one, BaseExceptionGroup):
            waiting.extend(one.exceptions)
        waiting += [one.__cause__, None if one.__suppress_context__ else one.__context__]


#: Types whose meaning is certain, whatever they say.
_CERTAIN: tuple[tuple[type[BaseException], FaultKind, str], ...] = (
    (NonFinite, FaultKind.NON_FINITE, FINITE),
    (LinkCorrupt, FaultKind.LINK_CORRUPT, LINK),
    (StateCorrupt, FaultKind.STATE_CORRUPT, STATE),
    (PeerLost, FaultKind.PEER_LOST, PEER),
    (DeadlineExceeded, FaultKind.STAGE_STALLED, STALLED),
    (MemoryError, FaultKind.OUT_OF_DEVICE_MEMORY, HOST_MEMORY),
)
#: Types that mean something where their text does not.
_LIKELY: tuple[tuple[type[BaseException], FaultKind, str], ...] = (
    (TimeoutError, FaultKind.STAGE_STALLED, STALLED),
    (ConnectionError, FaultKind.PEER_LOST, PEER),
    (EOFError, FaultKind.PEER_LOST, PEER),
)


def _of_exception(error: BaseException) -> Fault | None:
    """What one exception says by itself; None when nothing."""
    fault = _of_type(error, _CERTAIN)
    if fault is not None:
        return fault
    lines = [f"{_name(error)}: {_words(error)}", *map(str, getattr(error, "__notes__", ()))]
    found = _of_text("\n".join(lines))
    if found:
        return min(found, key=nearness)
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else 1 if error.code else 0
        return _of_exit(code, "")
    return _of_type(error, _LIKELY)


def _of_type(
    error: BaseException, types: tuple[tuple[type[BaseException], FaultKind, str], ...]
) -> Fault | None:
    for wanted, kind, advice in types:
        if isinstance(error, wanted):
            fault = Fault(kind, _said(error), advice, consequence=kind is FaultKind.PEER_LOST)
            if isinstance(error, NonFinite):
                fault = placed(fault, None, error.stage, None, error.step)
            return fault
    return None


def _of_text(text: str) -> list[Fault]:
    """A fault for each line that says something."""
    found = []
    for line in text[-_TEXT:].splitlines():
        seen = line.strip()
        if len(seen) > 2 * _LINE:
            seen = f"{seen[:_LINE]} ... {seen[-_LINE:]}"
        for pattern in PATTERNS:
            if pattern.looks_like.search(seen):
                cause, advice = shortened(line), pattern.advice
                found.append(Fault(pattern.kind, cause, advice, consequence=pattern.consequence))
                break
    return found


#: Signals that come from outside or from whoever stops a server: no cause of a fault.
_ASKED = {"SIGTERM", "SIGINT", "SIGHUP"}
#: By name: Windows has fewer.
_SIGNALS = {
    "SIGKILL": (
        "killed from outside",
        'the kernel does this when memory runs out (see `dmesg` for "Killed process"), and '
        "so does whoever stops containers",
    ),
    "SIGSEGV": (
        "a crash in native code",
        "often the device's driver: update it, and look at `dmesg`",
    ),
    "SIGABRT": (
        "native code gave up",
        "its last words are in the log above; often a driver's",
    ),
    "SIGBUS": (
        "memory behind a mapping is gone",
        "often /dev/shm is full (--shm-size of a container), or a model's file was changed",
    ),
    "SIGILL": (
        "an instruction that this processor lacks",
        "install a build for this processor",
    ),
}


def _of_exit(exit_code: int, text: str) -> Fault:
    number = -exit_code if exit_code < 0 else exit_code - 128 if 128 < exit_code < 160 else 0
    try:
        which = signal.Signals(number)
    except ValueError:
        last = _last_line(text)
        end = "without an error" if exit_code == 0 else f"with exit code {exit_code}"
        cause = f"the process ended {end}" + (f": {last}" if last else "")
        return Fault(FaultKind.STAGE_DIED, shortened(cause), DIED, consequence=True)
    what, advice = _SIGNALS.get(which.name, ("", DIED))
    cause = f"the process ended by signal {number} ({which.name})" + (f": {what}" if what else "")
    return Fault(FaultKind.STAGE_DIED, cause, advice, consequence=which.name in _ASKED)


def _said(error: BaseException) -> str:
    words = _words(error)
    return shortened(f"{_name(error)}: {words}" if words else _name(error))


def _name(error: BaseException) -> str:
    return type(error).__name__


def _words(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # somebody's own __str__
        return ""


def _last_line(text: str) -> str:
    lines = [line for line in text[-_TEXT:].splitlines() if line.strip()]
    return shortened(lines[-1]) if lines else ""
