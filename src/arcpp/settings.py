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
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, cast

from .devices import Device
from .errors import BadInput
from .nearest import nearest
from .units import parse_size

PREFIX = "ARCPP_"
SECTION = "arcpp"
#: Variables that adapters hand from one of their processes to the next.
INTERNAL = ("ARCPP_VLLM_", "ARCPP_OPENVINO_", "ARCPP_OVMS_")

_LONGEST_WAIT = 86_400.0  # seconds; more is a typing error, and some waits cannot count further


def _seconds(what: str, value: object) -> float:
    right = f"is not a number of seconds above 0 and at most {_LONGEST_WAIT:.0f}"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise BadInput(what, value, right)
    if not 0 < value <= _LONGEST_WAIT:  # not a number fails both
        raise BadInput(what, value, right)
    return float(value)


def _size(what: str, value: object) -> int:
    return parse_size(cast("str | int", value), what)  # it refuses other types itself


def _sizes(what: str, value: object) -> dict[str, int]:
    if not isinstance(value, Mapping):
        raise BadInput(what, value, 'is not sizes by device, such as {"xpu:0": "2GiB"}')
    return {str(name): parse_size(size, f"{what}: {name}") for name, size in value.items()}


def _names(what: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)) or not all(isinstance(name, str) for name in value):
        raise BadInput(what, value, 'is not a list of names, such as ["arcpp-example"]')
    return tuple(value)


def _switch(what: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise BadInput(what, value, "is not true or false")
    return value


def _number_in(what: str, text: str) -> object:  # noqa: ARG001 (checked with the value)
    try:
        return float(text)
    except ValueError:
        return text


def _sizes_in(what: str, text: str) -> object:
    sizes: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, size = part.partition("=")
        if not equals or not name.strip() or name.strip() in sizes:
            raise BadInput(what, text, "is not NAME=SIZE,NAME=SIZE with each name once")
        sizes[name.strip()] = size.strip()
    return sizes


def _names_in(what: str, text: str) -> object:  # noqa: ARG001 (any text is a list of names)
    return [name.strip() for name in text.split(",") if name.strip()]


def _switch_in(what: str, text: str) -> object:
    known = {"1": True, "true": True, "on": True, "0": False, "false": False, "off": False}
    if text.strip().lower() not in {*known, ""}:
        raise BadInput(what, text, "is not 1 or 0")
    return known.get(text.strip().lower(), False)


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
        check=_seconds,
        text=_number_in,
    )
    margin: int | None = _setting(
        None,
        unit="size",
        says="Memory left free on every device. The host's own fraction holds as well.",
        shown="256MiB, on devices below 8 GiB a 32nd of the total",
        check=_size,
        text=lambda _what, text: text,
    )
    reserve: Mapping[str, int] = _setting(
        {},
        unit="sizes by device",
        says="Memory promised to other programs, on top of the margin. Names are those that the "
        "plan shows, such as `xpu:0`.",
        shown="none",
        check=_sizes,
        text=_sizes_in,
    )
    load_plugins: tuple[str, ...] | None = _setting(
        None,
        unit="names",
        says="The plugins to load, by entry point or package; an empty list loads none. What is "
        "built in is always there.",
        shown="every installed plugin",
        check=_names,
        text=_names_in,
    )
    trace_hooks: bool = _setting(
        False,
        unit="switch",
        says="Write every call of a hook to standard error: arguments, result, time taken.",
        shown="off",
        check=_switch,
        text=_switch_in,
    )

    def reserves_on(self, devices: Iterable[Device]) -> dict[str, int]:
        """``reserve``, after a check that ``devices`` has every name in it (BadInput)."""
        known = {device.name for device in devices}
        for name in self.reserve:
            if name not in known:
                right = f"is no device here: {', '.join(sorted(known))}"
                raise BadInput("setting reserve", name, right)
        return dict(self.reserve)


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
