"""What a setting's value may be: checks that return it, or raise BadInput with one line.

A check takes (what, value): what the value is of, for the error. Those ending in ``_in`` turn a
variable's text into a value for a check.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

from .devices import check_memory
from .errors import BadInput
from .units import parse_size

_LONGEST_WAIT = 86_400.0  # seconds; more is a typing error, and some waits cannot count further
_LARGEST_COUNT = 1_000_000


def seconds(what: str, value: object) -> float:
    """A time above 0 and at most a day."""
    right = f"is not a number of seconds above 0 and at most {_LONGEST_WAIT:.0f}"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise BadInput(what, value, right)
    if not 0 < value <= _LONGEST_WAIT:  # not a number fails both
        raise BadInput(what, value, right)
    return float(value)


def count(what: str, value: object) -> int:
    """A whole number from 0 on."""
    whole = isinstance(value, float) and value.is_integer()  # a variable's text is read as one
    if isinstance(value, bool) or not (isinstance(value, int) or whole):
        raise BadInput(what, value, "is not a whole number")
    count = int(cast("int | float", value))
    if not 0 <= count <= _LARGEST_COUNT:
        raise BadInput(what, value, f"is not a whole number from 0 to {_LARGEST_COUNT}")
    return count


def size(what: str, value: object) -> int:
    """Bytes, in the grammar of arcpp.units."""
    return parse_size(cast("str | int", value), what)  # it refuses other types itself


def sizes(what: str, value: object) -> dict[str, int]:
    """Bytes by device."""
    if not isinstance(value, Mapping):
        raise BadInput(what, value, 'is not sizes by device, such as {"xpu:0": "2GiB"}')
    return {str(name): parse_size(size, f"{what}: {name}") for name, size in value.items()}


def memories(what: str, value: object) -> dict[str, tuple[int, int | None]]:
    """(total, free) by device; free None: as measured."""
    if not isinstance(value, Mapping):
        right = 'is not memory by device, such as {"xpu:0": "16GB"} or {"xpu:0": "16GB:14GB"}'
        raise BadInput(what, value, right)
    return {str(name): _memory(f"{what}: {name}", given) for name, given in value.items()}


def _memory(what: str, given: object) -> tuple[int, int | None]:
    """(total, free) of ``TOTAL`` or ``TOTAL:FREE``; free None: as measured."""
    total, colon, free = given.partition(":") if isinstance(given, str) else (given, "", "")
    sizes = size(what, total), size(f"{what}: free", free) if colon else None
    check_memory(what, sizes[0], sizes[0] if sizes[1] is None else sizes[1])
    return sizes


def names(what: str, value: object) -> tuple[str, ...]:
    """A tuple of names."""
    if not isinstance(value, (list, tuple)) or not all(isinstance(name, str) for name in value):
        raise BadInput(what, value, 'is not a list of names, such as ["arcpp-example"]')
    return tuple(value)


def switch(what: str, value: object) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise BadInput(what, value, "is not true or false")
    return value


def one_of(*choices: str) -> Callable[[str, object], str]:
    """A check for one of a few words."""

    def check(what: str, value: object) -> str:
        if value not in choices:
            raise BadInput(what, value, f"is none of {', '.join(choices)}")
        return str(value)

    return check


def number_in(what: str, text: str) -> object:  # noqa: ARG001 (checked with the value)
    """A variable's text as a number, if it is one."""
    try:
        return float(text)
    except ValueError:
        return text


def sizes_in(what: str, text: str) -> object:
    """NAME=SIZE,NAME=SIZE."""
    sizes: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, size = part.partition("=")
        if not equals or not name.strip() or name.strip() in sizes:
            raise BadInput(what, text, "is not NAME=SIZE,NAME=SIZE with each name once")
        sizes[name.strip()] = size.strip()
    return sizes


def names_in(what: str, text: str) -> object:  # noqa: ARG001 (any text is a list of names)
    """NAME,NAME."""
    return [name.strip() for name in text.split(",") if name.strip()]


def switch_in(what: str, text: str) -> object:
    """1 or 0, on or off, true or false."""
    known = {"1": True, "true": True, "on": True, "0": False, "false": False, "off": False}
    if text.strip().lower() not in {*known, ""}:
        raise BadInput(what, text, "is not 1 or 0")
    return known.get(text.strip().lower(), False)
