"""Settings: what is configured once for a server rather than asked for a plan.

Sources, the strongest first: what the host's own configuration says (vLLM's
``--additional-config '{"arcpp": {...}}'``, which reaches every process of the engine, or a JSON
file), then a variable ``ARCPP_<NAME>``, then the default. A name nobody knows is refused with
the nearest one that exists. docs/settings.md is generated from the fields below.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from .devices import Device
from .errors import BadInput
from .nearest import nearest
from .setting_values import (
    count,
    memories,
    names,
    names_in,
    number_in,
    one_of,
    seconds,
    size,
    sizes,
    sizes_in,
    switch,
    switch_in,
)

PREFIX = "ARCPP_"
SECTION = "arcpp"
#: Variables that adapters hand from one of their processes to the next.
INTERNAL = ("ARCPP_VLLM_", "ARCPP_OPENVINO_", "ARCPP_OVMS_")


def _setting(
    default: Any,
    *,
    unit: str,
    says: str,
    shown: str,
    check: Callable[[str, object], Any],
    text: Callable[[str, str], object],
) -> Any:
    """A field. shown: the default in words. check: value -> value, or BadInput. text: variable
    -> value for check."""
    factory = {"default_factory": dict} if default == {} else {"default": default}
    notes = {"help": says, "unit": unit, "default": shown, "check": check, "text": text}
    return field(**factory, metadata=notes, hash=default != {})


@dataclass(frozen=True)
class Settings:
    """Everything that can be set. None: the default is the host's or the planner's own.

    Made by the functions below, which check what they read.
    """

    link_timeout: float | None = _setting(
        None,
        unit="seconds",
        says="How long a stage waits for a boundary, or for room to hand one over, before the "
        "link counts as failed.",
        shown="vLLM's `VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS` (300)",
        check=seconds,
        text=number_in,
    )
    link: str | None = _setting(
        None,
        unit="ring, gloo or p2p",
        says="How boundaries travel: `ring` through shared memory, `gloo` through sockets (slow, "
        "for comparison), `p2p` from card to card where a content check passes, else as `ring`.",
        shown="`ring`; `gloo` on machines that are not x86-64",
        check=one_of("ring", "gloo", "p2p"),
        text=lambda _what, text: text,
    )
    link_verification: str | None = _setting(
        None,
        unit="off, descriptor or device",
        says="What is checked of every hop: nothing beyond its header; names, dtypes and shapes; "
        "or also a checksum taken on the sending device and again on the receiving one, which "
        "catches a copy that lies.",
        shown="`descriptor`; `device` where the check at start found a wrong copy",
        check=one_of("off", "descriptor", "device"),
        text=lambda _what, text: text,
    )
    margin: int | None = _setting(
        None,
        unit="size",
        says="Memory left free on every device. The host's own fraction holds as well.",
        shown="256MiB, on devices below 8 GiB a 32nd of the total",
        check=size,
        text=lambda _what, text: text,
    )
    reserve: Mapping[str, int] = _setting(
        {},
        unit="sizes by device",
        says="Memory promised to other programs, on top of the margin. Names are those that the "
        "plan shows, such as `xpu:0`.",
        shown="none",
        check=sizes,
        text=sizes_in,
    )
    device_memory: Mapping[str, tuple[int, int | None]] = _setting(
        {},
        unit="memory by device",
        says="What a device has, where its driver says it wrong: `TOTAL`, or `TOTAL:FREE`. It wins "
        "over everything measured; without `FREE` that is still measured. For accelerators.",
        shown="as measured",
        check=memories,
        text=sizes_in,
    )
    load_plugins: tuple[str, ...] | None = _setting(
        None,
        unit="names",
        says="The plugins to load, by entry point or package; an empty list loads none. What is "
        "built in is always there.",
        shown="every installed plugin",
        check=names,
        text=names_in,
    )
    trace_hooks: bool = _setting(
        False,
        unit="switch",
        says="Write every call of a hook to standard error: arguments, result, time taken.",
        shown="off",
        check=switch,
        text=switch_in,
    )

    step_timeout: float | None = _setting(
        None,
        unit="seconds",
        says="How long one step may take before its stage counts as stalled and is restarted.",
        shown="ten times what steps of that size took so far, 30 at least",
        check=seconds,
        text=number_in,
    )
    restart_budget: int = _setting(
        5,
        unit="number",
        says="Faults within `restart_window` that are survived; the next one ends the server with "
        "the history of them. 0: a fault ends it as in the host without arcpp.",
        shown="5",
        check=count,
        text=number_in,
    )
    restart_window: float = _setting(
        600.0,
        unit="seconds",
        says="The time over which `restart_budget` counts.",
        shown="600",
        check=seconds,
        text=number_in,
    )
    standby: bool = _setting(
        False,
        unit="switch",
        says="Keep a process with everything imported, from which stages are forked, so that they "
        "restart sooner. On accelerators it imports only what touches no driver.",
        shown="off",
        check=switch,
        text=switch_in,
    )
    recovery_queue: int = _setting(
        256,
        unit="number",
        says="New requests kept waiting while stages restart; more are answered with status 503.",
        shown="256",
        check=count,
        text=number_in,
    )
    check_finite: bool = _setting(
        True,
        unit="switch",
        says="Values that are not finite, at a boundary or in logits, are a fault, not a token.",
        shown="on",
        check=switch,
        text=switch_in,
    )

    zero_state: bool = _setting(
        True,
        unit="switch",
        says="Recurrent state of a request that begins is zeroed on every stage, whatever was "
        "there before.",
        shown="on",
        check=switch,
        text=switch_in,
    )
    state_check_every: int = _setting(
        100,
        unit="number",
        says="Every so many steps the recurrent states of eight requests are looked at: values "
        "that are not finite are a fault. 0: never.",
        shown="100",
        check=count,
        text=number_in,
    )
    state_canary: bool = _setting(
        False,
        unit="switch",
        says="For debugging: a pattern behind the recurrent state of each request, looked at after "
        "every step; whoever writes past a state is a fault.",
        shown="off",
        check=switch,
        text=switch_in,
    )

    def reserves_on(self, devices: Iterable[Device]) -> dict[str, int]:
        """``reserve``, after a check that ``devices`` has every name in it (BadInput)."""
        self._check_names("reserve", devices)
        return dict(self.reserve)

    def check_device_memory(self, devices: Iterable[Device]) -> None:
        """Refuse (BadInput) a name in ``device_memory`` that is none of ``devices``."""
        self._check_names("device_memory", devices)

    def _check_names(self, setting: str, devices: Iterable[Device]) -> None:
        known = {device.name for device in devices}
        for name in getattr(self, setting):
            if name not in known:
                right = f"is no device here: {', '.join(sorted(known))}"
                raise BadInput(f"setting {setting}", name, right)

    def declared(self, device: Device) -> Device:
        """``device`` with the memory that ``device_memory`` says it has, if any."""
        if device.name not in self.device_memory:
            return device
        total, free = self.device_memory[device.name]
        measured = min(device.memory.free, total) if device.memory.total > 0 else total
        memory = replace(
            device.memory,
            total=total,
            free=measured if free is None else free,
            source="declared" if free is not None else f"{device.memory.source}, total declared",
        )
        return replace(device, memory=memory)


def variable(name: str) -> str:
    """The environment variable of setting ``name``: ``ARCPP_LINK_TIMEOUT``."""
    return PREFIX + name.upper()


def read_settings(
    explicit: Mapping[str, object] | None = None,
    where: str = "settings",
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """Settings from ``explicit``, called ``where`` in errors, then from variables.

    environ: by default the process's own. Raises BadInput, one line, for a name nobody knows
    (with the nearest one) and a value of the wrong kind.
    """
    variables = os.environ if environ is None else environ
    known = {setting.name: setting.metadata for setting in fields(Settings)}
    values: dict[str, Any] = {}
    for name, text in sorted(variables.items()):
        if not name.startswith(PREFIX) or name.startswith(INTERNAL):
            continue
        key = name.removeprefix(PREFIX).lower()
        if key not in known or name != variable(key):
            right = f"is no variable of arcpp{nearest(name, map(variable, known))}"
            raise BadInput("environment", name, right)
        values[key] = known[key]["check"](name, known[key]["text"](name, text))
    for key, value in (explicit or {}).items():
        if key not in known:
            raise BadInput(where, key, f"is no setting of arcpp{nearest(key, known)}")
        values[key] = known[key]["check"](f"{where}: {key}", value)
    return Settings(**values)


def from_additional_config(
    additional_config: object, environ: Mapping[str, str] | None = None
) -> Settings:
    """Settings in vLLM's ``--additional-config`` (its section "arcpp"), then from variables.

    Other sections are other programs' and left alone, unless their name looks like ours
    misspelt. Raises BadInput.
    """
    where = "--additional-config"
    sections = additional_config if isinstance(additional_config, Mapping) else {}
    for name in sections:
        if name != SECTION and nearest(str(name), [SECTION]):
            raise BadInput(where, name, f"is no section{nearest(str(name), [SECTION])}")
    section = sections.get(SECTION, {})
    if not isinstance(section, Mapping):
        right = 'is not an object, such as {"arcpp": {"margin": "512MiB"}}'
        raise BadInput(f"{where}: {SECTION}", section, right)
    return read_settings(section, f"{where}: {SECTION}", environ)


def from_file(path: Path, environ: Mapping[str, str] | None = None) -> Settings:
    """Settings in a JSON file of one object, then from variables. Raises BadInput."""
    try:
        section = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise BadInput("settings", str(path), f"cannot be read: {reason}") from error
    if not isinstance(section, dict):
        raise BadInput("settings", str(path), "is not one JSON object")
    return read_settings(section, str(path), environ)


def settings_table() -> str:
    """docs/settings.md's table, in Markdown."""
    rows = ["| setting | variable | value | default | what it does |", "| --- " * 5 + "|"]
    for setting in fields(Settings):
        notes = setting.metadata
        cells = (f"`{setting.name}`", f"`{variable(setting.name)}`", notes["unit"])
        rows.append(f"| {' | '.join((*cells, notes['default'], notes['help']))} |")
    return "\n".join(rows) + "\n"
