"""The suite on every kind of tables, and itself: what is broken is caught."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from tests.support.state_kinds import KINDS, NULL, TORCH, Kind

from arcpp.errors import StateError
from arcpp.state import PoolSize, SlotPool, Start, StateTables
from arcpp.state.ledger import Ledger
from arcpp.state.ring import Ring
from arcpp.testing import STATE_CASES, NullTables, StateCase, run_requests

SIZE = PoolSize(slots=4, drafts=3, snapshots=2)
REQUESTS = 2000


@pytest.fixture(params=KINDS, ids=str)
def kind(request: pytest.FixtureRequest) -> Kind:
    if request.param.missing:
        pytest.skip(f"{request.param.needs} is not installed")
    return request.param  # type: ignore[no-any-return]


@pytest.mark.parametrize("case", STATE_CASES, ids=str)
def test_every_kind_of_tables_passes(kind: Kind, case: StateCase) -> None:
    case.run(kind.make)


@pytest.mark.parametrize("start", Start, ids=lambda start: start.value)
def test_two_thousand_requests_read_no_state_but_their_own(kind: Kind, start: Start) -> None:
    assert run_requests(kind.make, 7, REQUESTS, SIZE, start).served >= REQUESTS


def test_every_case_has_its_own_name() -> None:
    assert len({case.name for case in STATE_CASES}) == len(STATE_CASES)


# What somebody might break one day. Each takes the patch and the tables' class.
Mutant = Callable[[pytest.MonkeyPatch, type[StateTables]], None]


def zeroing_out(patch: pytest.MonkeyPatch, tables: type[StateTables]) -> None:
    """Slots are handed out as they were left, but for the zero place."""
    zero = tables.zero

    def only_the_zero_place(self: StateTables, places: Sequence[int]) -> None:
        zero(self, [place for place in places if place == 0])

    patch.setattr(tables, "zero", only_the_zero_place)


def zero_place_out(patch: pytest.MonkeyPatch, tables: type[StateTables]) -> None:
    """A slot starts at its own first place, as it was left."""
    made = Ring.__init__

    def at_its_own(self: Ring, *args: Any, first: int, size: int, start: int) -> None:
        made(self, *args, first=first, size=size, start=first)

    patch.setattr(Ring, "__init__", at_its_own)


def bound_out(patch: pytest.MonkeyPatch, tables: type[StateTables]) -> None:
    """When every slot is taken, those taken longest are lent again."""
    upcoming, lend = Ledger.upcoming, Ledger.lend

    def without_bound(self: Ledger, needed: int) -> tuple[int, ...]:
        more = tuple(self._holders)[: max(0, needed - self.available)]
        return upcoming(self, needed - len(more)) + more

    def again(self: Ledger, number: int, owner: object) -> int:
        if number in self._holders:
            self.take_back(number)
        return lend(self, number, owner)

    patch.setattr(Ledger, "upcoming", without_bound)
    patch.setattr(Ledger, "lend", again)


def drafts_in_place(patch: pytest.MonkeyPatch, tables: type[StateTables]) -> None:
    """Draft tokens write from the state on instead of after it: none can be taken back."""
    patch.setattr(
        Ring, "_place", lambda self, ahead: self.first + (self._at + max(0, ahead - 1)) % self.size
    )


def rollback_out(patch: pytest.MonkeyPatch, tables: type[StateTables]) -> None:
    """Whatever is accepted, all drafts stay."""
    accept = Ring.accept
    patch.setattr(Ring, "accept", lambda self, accepted: accept(self, self._proposed or 0))


def generations_out(patch: pytest.MonkeyPatch, tables: type[StateTables]) -> None:
    """A handle kept too long is taken for whoever has the slot now."""
    patch.setattr(Ledger, "is_current", lambda self, number, generation: number in self._holders)


def copies_out(patch: pytest.MonkeyPatch, tables: type[StateTables]) -> None:
    """Restoring a snapshot leaves the slot as it was left."""
    patch.setattr(tables, "copy", lambda self, pairs: None)


def commit_first(patch: pytest.MonkeyPatch, tables: type[StateTables]) -> None:
    """Slots are lent before the device has made them ready."""

    def assign(self: SlotPool, wants: Sequence[Any]) -> Any:
        numbers = self._planned(wants)
        slots = [self._committed(*each) for each in zip(wants, numbers, strict=True)]
        self._prepare(wants, numbers)
        return tuple(slots)

    patch.setattr(SlotPool, "assign", assign)


RANDOM = tuple(f"random requests ({start.value})" for start in Start)
CAUGHT_BY: dict[Mutant, tuple[str, ...]] = {
    zeroing_out: (RANDOM[1], RANDOM[2], "a slot reads as zero whenever it is lent (zeroed)"),
    zero_place_out: (RANDOM[0], "a slot reads as zero whenever it is lent (zero place)"),
    bound_out: (*RANDOM, "slots are bounded, and a refusal says by how much"),
    drafts_in_place: (*RANDOM, "any number of draft tokens is taken back"),
    rollback_out: (*RANDOM, "any number of draft tokens is taken back"),
    generations_out: ("handles of the past and of other pools are refused",),
    copies_out: (*RANDOM, "a snapshot is a copy, and restoring it another"),
    commit_first: ("an assignment is whole or not at all (zeroed)",),
}


def _mutants() -> Iterator[Any]:
    for mutant, cases in CAUGHT_BY.items():
        for case in cases:
            for kind in (NULL, TORCH):
                yield pytest.param(mutant, case, kind, id=f"{mutant.__name__}-{case}-{kind}")


@pytest.mark.parametrize(("mutant", "name", "kind"), tuple(_mutants()))
def test_what_is_broken_is_caught(
    mutant: Mutant, name: str, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = next(case for case in STATE_CASES if case.name == name)
    mutant(monkeypatch, type(kind.make([], 0)) if kind is NULL else _torch_tables())
    with pytest.raises((AssertionError, StateError)):
        case.run(kind.make)


def _torch_tables() -> type[StateTables]:
    pytest.importorskip("torch")
    from arcpp.backends.torch_state import TorchTables

    return TorchTables


class Careless(NullTables):
    """Looks at the last place only."""

    def are_zero(self, places: Sequence[int]) -> bool:
        return super().are_zero(places[-1:])


class Generous(NullTables):
    """Zeroes whatever lies between."""

    def zero(self, places: Sequence[int]) -> None:
        super().zero(range(min(places, default=0), max(places, default=-1) + 1))


class Simultaneous(NullTables):
    """Copies from what was there before all of the copies."""

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        before = [self.read(source) for source, _ in pairs]
        for (_, target), raw in zip(pairs, before, strict=True):
            self.write(target, raw)


class CountingBack(NullTables):
    """Takes -1 for the last place."""

    def check(self, places: Sequence[int]) -> None:
        super().check([place % self.places if place < 0 else place for place in places])


@pytest.mark.parametrize(
    "tables", [Careless, Generous, Simultaneous, CountingBack], ids=lambda kind: kind.__name__
)
def test_tables_that_are_broken_are_caught(tables: type[NullTables]) -> None:
    caught = []
    for case in STATE_CASES:
        try:
            case.run(tables)
        except (AssertionError, StateError):
            caught.append(case.name)
    assert [name for name in caught if name.startswith("tables: ")]
