"""State tables in plain memory, and what may go wrong with tables of any runtime."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from arcpp.link.frame import TensorSpec
from arcpp.state import StateTables

from .null_faults import NullDeviceLost


class NullTables(StateTables):
    """Tables of a virtual device ("null:0"), one stretch of bytes a place.

    They begin full of 0xA5, so that nothing reads as zero by luck.
    """

    def __init__(self, arrays: Sequence[TensorSpec], places: int, device: str = "null:0") -> None:
        self.arrays, self.places, self.device = tuple(arrays), places, device
        self._memory = [bytearray(b"\xa5" * self.place_bytes) for _ in range(places)]

    def zero(self, places: Sequence[int]) -> None:
        """As in the port."""
        self.check(places)
        for place in places:
            self._memory[place][:] = bytes(self.place_bytes)

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """As in the port."""
        self.check([place for pair in pairs for place in pair])
        for source, target in pairs:
            self._memory[target][:] = self._memory[source]

    def are_zero(self, places: Sequence[int]) -> bool:
        """As in the port."""
        self.check(places)
        return not any(any(self._memory[place]) for place in places)

    def read(self, place: int) -> bytes:
        """As in the port."""
        self.check([place])
        return bytes(self._memory[place])

    def write(self, place: int, raw: bytes) -> None:
        """As in the port."""
        self.check([place])
        self._memory[place][:] = b"".join(self.split(raw))


class StateWrong(Enum):
    """What one zeroing or copying does.

    FAILS: does half of it, then raises. VANISHES: the same, and the device is lost for good.
    FORGETS: does nothing, and says nothing. CORRUPTS: changes one byte, and says nothing.
    """

    FAILS = "fails"
    VANISHES = "vanishes"
    FORGETS = "forgets"
    CORRUPTS = "corrupts"


class NullStateFailed(RuntimeError):
    """An operation on tables that failed once, as a runtime would say it."""


@dataclass(frozen=True)
class StateFault:
    """One operation that goes wrong.

    call: which, counted from 0 over zero() and copy() together. where: of the byte that changes,
    as a share [0, 1) of a place.
    """

    wrong: StateWrong
    call: int = 0
    where: float = 0.5

    @staticmethod
    def by_seed(wrong: StateWrong, seed: int, calls: int) -> StateFault:
        """Any of the first ``calls`` operations, any byte; the same for one seed."""
        chosen = random.Random(seed)  # noqa: S311 (to be repeated, not to be secret)
        return StateFault(wrong, chosen.randrange(calls), chosen.random())


class FaultyTables(StateTables):
    """``tables`` of any runtime, with what is due to go wrong on them. calls: operations so far."""

    def __init__(self, tables: StateTables, faults: Sequence[StateFault] = ()) -> None:
        self._tables, self.faults, self.calls, self._lost = tables, list(faults), 0, False
        self.arrays, self.places, self.device = tables.arrays, tables.places, tables.device

    def zero(self, places: Sequence[int]) -> None:
        """As in the port."""
        fault = self._due()
        self._tables.zero(places[: _done(len(places), fault)])
        self._end(places, fault)

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """As in the port."""
        fault = self._due()
        self._tables.copy(pairs[: _done(len(pairs), fault)])
        self._end([target for _, target in pairs], fault)

    def are_zero(self, places: Sequence[int]) -> bool:
        """As in the port."""
        self._refuse_lost()
        return self._tables.are_zero(places)

    def read(self, place: int) -> bytes:
        """As in the port."""
        self._refuse_lost()
        return self._tables.read(place)

    def write(self, place: int, raw: bytes) -> None:
        """As in the port."""
        self._refuse_lost()
        self._tables.write(place, raw)

    def _due(self) -> StateFault | None:
        self._refuse_lost()
        self.calls += 1
        return next((each for each in self.faults if each.call == self.calls - 1), None)

    def _end(self, written: Sequence[int], fault: StateFault | None) -> None:
        if fault is None or not written:
            return
        if fault.wrong is StateWrong.CORRUPTS:
            raw = bytearray(self._tables.read(written[-1]))
            raw[int(fault.where * len(raw))] ^= 1
            self._tables.write(written[-1], bytes(raw))
        elif fault.wrong is StateWrong.FAILS:
            raise NullStateFailed(f"an operation on {self.device} failed halfway")
        elif fault.wrong is StateWrong.VANISHES:
            self._lost = True
            self._refuse_lost()

    def _refuse_lost(self) -> None:
        if self._lost:
            raise NullDeviceLost(f"{self.device} was lost")


def _done(count: int, fault: StateFault | None) -> int:
    """How many of ``count`` places an operation reaches."""
    if fault is None or fault.wrong is StateWrong.CORRUPTS:
        return count
    return 0 if fault.wrong is StateWrong.FORGETS else (count + 1) // 2
