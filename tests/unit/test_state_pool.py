"""Pool, ring and ledger on their own: sizes, messages with fields, and books that are wrong."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from arcpp.errors import SlotMisuse, StateCorrupt, StateExhausted
from arcpp.link.frame import TensorSpec
from arcpp.state import ZERO_PLACE, PoolSize, SlotPool, Start, Want, Window
from arcpp.state.ring import Ring
from arcpp.testing import NullTables

ARRAYS = (TensorSpec("ssm", "float32", (2,)),)
SIZE = PoolSize(slots=2, drafts=2, snapshots=1)


def pool(start: Start = Start.ZERO_PLACE) -> SlotPool:
    return SlotPool(NullTables(ARRAYS, SIZE.places), SIZE, start)


def test_a_size_counts_the_zero_place_every_ring_and_every_snapshot() -> None:
    assert (SIZE.ring, SIZE.places) == (3, 1 + 2 * 3 + 1)
    assert PoolSize(1).places == 2


@pytest.mark.parametrize("size", [(0, 0, 0), (1, -1, 0), (1, 0, -1)])
def test_a_size_that_cannot_be_is_refused(size: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="cannot be"):
        PoolSize(*size)


def test_tables_that_are_too_small_are_refused() -> None:
    with pytest.raises(ValueError, match="needs 8 places, the tables have 7"):
        SlotPool(NullTables(ARRAYS, SIZE.places - 1), SIZE)


def test_windows_of_a_request_that_speculates() -> None:
    lent = pool()
    slot = lent.acquire("a")
    assert lent.step(slot) == Window(ZERO_PLACE, (1,))
    assert lent.checkpoint(slot, 2) == Window(1, (2, 3))
    lent.accept(slot, 1)
    assert lent.step(slot) == Window(2, (2,))
    assert lent.checkpoint(slot, 2) == Window(2, (3, 1))
    lent.accept(slot, 2)
    assert lent.reads(slot) == 1


def test_drafts_may_be_proposed_before_anything_was_computed() -> None:
    lent = pool()
    slot = lent.acquire("a")
    assert lent.checkpoint(slot, 1) == Window(ZERO_PLACE, (2,))
    lent.accept(slot, 0)
    assert lent.reads(slot) == ZERO_PLACE
    assert lent.step(slot) == Window(ZERO_PLACE, (1,))


@pytest.mark.parametrize("start", [Start.ZEROED, Start.PROVEN])
def test_backends_that_work_in_place_start_at_their_own(start: Start) -> None:
    lent = pool(start)
    slot = lent.acquire("a")
    assert lent.tables.are_zero([1])
    assert lent.step(slot) == Window(1, (1,))


def test_acquiring_from_the_zero_place_touches_no_table() -> None:
    lent = pool()
    before = [lent.tables.read(place) for place in range(SIZE.places)]
    lent.assign([Want("a"), Want("b")])
    assert [lent.tables.read(place) for place in range(SIZE.places)] == before


def test_refusals_carry_numbers_and_say_what_to_do() -> None:
    lent = pool()
    lent.acquire("a")
    with pytest.raises(StateExhausted) as refused:
        lent.assign([Want("b"), Want("c")])
    error = refused.value
    assert (error.what, error.needed, error.available, error.capacity) == ("state slots", 2, 1, 2)
    assert str(error).startswith("2 state slots needed, 1 of 2 free: wait until")
    with pytest.raises(SlotMisuse, match="'a' has a slot already") as twice:
        lent.acquire("a")
    assert (twice.value.owner, twice.value.number) == ("a", None)


def test_nothing_is_assigned_for_no_wants() -> None:
    assert pool().assign([]) == ()


def _two_free(lent: SlotPool) -> None:
    lent._slots._free.append(0)


def _lost(lent: SlotPool) -> None:
    lent._slots._free.clear()


def _two_owners(lent: SlotPool) -> None:
    lent.acquire("b")
    lent._slots._holders[1] = "a"


def _never_lent(lent: SlotPool) -> None:
    lent._slots._generations[0] = 0


def _ring_gone(lent: SlotPool) -> None:
    lent._rings.clear()


def _ring_elsewhere(lent: SlotPool) -> None:
    lent._rings[0] = Ring(0, "a", first=2, size=3, start=2)


def _reads_a_neighbour(lent: SlotPool) -> None:
    lent._rings[0].read = 4


def _snapshot_lost(lent: SlotPool) -> None:
    lent._snapshots._free.clear()


def _dirt(lent: SlotPool) -> None:
    lent.tables.write(ZERO_PLACE, bytes(7) + b"\x80")


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (_two_free, "are not each of 2 once"),
        (_lost, "are not each of 2 once"),
        (_two_owners, "'a' has two slots"),
        (_never_lent, "one is held that was never lent"),
        (_ring_gone, "are not those of the slots held"),
        (_ring_elsewhere, "slot 0 writes range"),
        (_reads_a_neighbour, "slot 0 reads place 4"),
        (_snapshot_lost, "state snapshots: free"),
        (_dirt, "the zero place on null:0 is not zero any more"),
    ],
)
def test_every_kind_of_damage_is_noticed(harm: Callable[[SlotPool], None], says: str) -> None:
    lent = pool()
    lent.acquire("a")
    lent.check_integrity()
    harm(lent)
    with pytest.raises(StateCorrupt) as found:
        lent.check_integrity()
    assert any(says in problem for problem in found.value.problems)
    assert len(str(found.value).splitlines()) == 1


def test_reading_the_zero_place_is_damage_where_slots_are_zeroed() -> None:
    lent = pool(Start.ZEROED)
    lent.acquire("a")
    lent._rings[0].read = ZERO_PLACE
    with pytest.raises(StateCorrupt, match="reads place 0"):
        lent.check_integrity()


def test_faults_are_the_same_for_one_seed() -> None:
    from arcpp.testing import StateFault, StateWrong

    assert StateFault.by_seed(StateWrong.FAILS, 3, 50) == StateFault.by_seed(
        StateWrong.FAILS, 3, 50
    )
    assert len({StateFault.by_seed(StateWrong.FAILS, seed, 50) for seed in range(20)}) > 10
