"""What every table of state promises, and what a case is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from arcpp.errors import StateError
from arcpp.state import StateTables

from .kit import pattern_bytes
from .state_oracle import ARRAYS, MakeTables
from .watch import check

_Error = TypeVar("_Error", bound=Exception)


def expect(kind: type[_Error], use: Callable[[], object], what: str) -> _Error:
    """The error of ``kind`` that ``use`` must raise; ours are one line."""
    try:
        use()
    except kind as error:
        lines = str(error).splitlines()
        check(not isinstance(error, StateError) or len(lines) == 1, f"more than one line: {error}")
        return error
    raise AssertionError(f"{what}: no {kind.__name__}")


@dataclass(frozen=True)
class StateCase:
    """One promise. run: takes what makes tables; AssertionError says what is broken."""

    name: str
    run: Callable[[MakeTables], None]

    def __str__(self) -> str:
        return self.name


def filled(make: MakeTables, places: int = 6) -> tuple[StateTables, list[bytes]]:
    """Tables with other bytes in each place, and those bytes."""
    tables = make(ARRAYS, places)
    check(tables.places >= places, f"{tables.places} places were made, not {places}")
    check(tables.arrays == ARRAYS, f"{tables.arrays} were made, not {ARRAYS}")
    raw = [pattern_bytes("uint8", (tables.place_bytes,), place) for place in range(places)]
    for place, content in enumerate(raw):
        tables.write(place, content)
    return tables, raw


def _check_places(tables: StateTables, wanted: list[bytes]) -> None:
    found = [tables.read(place) for place in range(len(wanted))]
    wrong = [place for place in range(len(wanted)) if found[place] != wanted[place]]
    check(not wrong, f"places {wrong} are not what they must be")


def _zeroes_only(make: MakeTables) -> None:
    tables, raw = filled(make)
    tables.zero([4, 1, 2])
    zero = bytes(tables.place_bytes)
    _check_places(tables, [raw[0], zero, zero, raw[3], zero, raw[5]])
    tables.zero([])
    check(tables.are_zero([1, 2, 4]), "what was zeroed is not zero")
    check(tables.are_zero([]), "no place at all is not zero")


def _copies(make: MakeTables) -> None:
    tables, raw = filled(make)
    tables.copy([(0, 3), (3, 5), (1, 1)])
    tables.copy([])
    _check_places(tables, [raw[0], raw[1], raw[2], raw[0], raw[4], raw[0]])


def _sees_one_bit(make: MakeTables) -> None:
    tables = make(ARRAYS, 3)
    tables.zero([0, 1, 2])
    at = 0
    for array in tables.arrays:
        for byte in (at, at + array.nbytes // 2, at + array.nbytes - 1):
            raw = bytearray(tables.place_bytes)
            raw[byte] = 0x80
            tables.write(1, bytes(raw))
            check(not tables.are_zero([0, 1, 2]), f"a bit in byte {byte} was not noticed")
            check(tables.are_zero([0, 2]), "a neighbour's bit was taken for its own")
        at += array.nbytes


def _refuses_places(make: MakeTables) -> None:
    tables, raw = filled(make)
    for wrong in (-1, tables.places, 2**40):
        uses: dict[str, Callable[[int], object]] = {
            "zero": lambda place: tables.zero([0, place]),
            "copy from": lambda place: tables.copy([(0, 1), (place, 2)]),
            "copy to": lambda place: tables.copy([(0, 1), (2, place)]),
            "are_zero": lambda place: tables.are_zero([place]),
            "read": tables.read,
            "write": lambda place: tables.write(place, raw[0]),
        }
        for name, use in uses.items():
            expect(IndexError, partial(use, wrong), f"{name} of {wrong}")
    expect(ValueError, lambda: tables.write(0, raw[0][:-1]), "a write that is too short")
    _check_places(tables, raw)


TABLE_CASES: tuple[StateCase, ...] = (
    StateCase("tables: zero reaches those places and no others", _zeroes_only),
    StateCase("tables: copies are exact, one after the other", _copies),
    StateCase("tables: one bit is not zero", _sees_one_bit),
    StateCase("tables: places that are not there are refused", _refuses_places),
)
