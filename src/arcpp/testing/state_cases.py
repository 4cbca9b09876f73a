"""Every promise of ``arcpp.state`` as a case; those of tables alone are ``state_table_cases``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from arcpp.backends.null_faults import NullDeviceLost
from arcpp.backends.null_state import FaultyTables, NullStateFailed, StateFault, StateWrong
from arcpp.errors import (
    DoubleRelease,
    ForeignSlot,
    SlotMisuse,
    StateCorrupt,
    StateExhausted,
    UseAfterRelease,
)
from arcpp.link.frame import TensorSpec
from arcpp.state import ZERO_PLACE, PoolSize, SlotPool, Start, StateTables, Want

from .state_oracle import ARRAYS, MakeTables, OraclePool, run_requests
from .state_table_cases import TABLE_CASES, StateCase, expect, filled
from .watch import check

_SIZE = PoolSize(slots=3, drafts=2, snapshots=2)


def _reads_zero(start: Start) -> Callable[[MakeTables], None]:
    def run(make: MakeTables) -> None:
        both = OraclePool(make, _SIZE, start)
        for turn in range(12):
            both.assign([Want(turn)])
            both.step(turn, [turn, 7])
            both.speculate(turn, [1, 2], turn % 3)
            if turn >= 2:
                both.release(turn - 2)
            both.compare_all()

    return run


def _is_bounded(make: MakeTables) -> None:
    both = OraclePool(make, _SIZE)
    both.assign([Want(owner) for owner in "abc"])
    for owner in "abc":
        both.step(owner, [ord(owner)])
    error = expect(StateExhausted, lambda: both.pool.acquire("d"), "a slot too many")
    fields = (error.needed, error.available, error.capacity)
    check(fields == (1, 0, 3), f"the refusal says {fields}")
    both.release("b")
    both.assign([Want("d"), Want("e")])
    both.assign([Want("d")])
    both.step("d", [1])
    both.compare_all()


def _refuses_misuse(make: MakeTables) -> None:
    pool, other = (SlotPool(make(ARRAYS, _SIZE.places), _SIZE) for _ in range(2))
    slot, foreign = pool.acquire("a"), other.acquire("a")
    kept, theirs = pool.snapshot(slot), other.snapshot(foreign)
    uses = (pool.step, pool.reads, pool.snapshot, lambda slot: pool.checkpoint(slot, 1))
    for use in (*uses, pool.release, lambda slot: pool.accept(slot, 0)):
        expect(ForeignSlot, partial(use, foreign), "another pool's slot")
    expect(ForeignSlot, lambda: pool.restore(theirs, "b"), "another pool's snapshot")
    expect(ForeignSlot, lambda: pool.drop(theirs), "another pool's snapshot")
    expect(SlotMisuse, lambda: pool.acquire("a"), "a second slot for one owner")
    expect(SlotMisuse, lambda: pool.assign([Want("b"), Want("b")]), "two at once for one owner")
    pool.release(slot)
    again = pool.acquire("c")
    check(again.number == slot.number, "a slot that was given back is lent again first")
    for use in uses:
        expect(UseAfterRelease, partial(use, slot), "a slot given back and lent again")
    expect(DoubleRelease, lambda: pool.release(slot), "a second release")
    pool.drop(kept)
    expect(DoubleRelease, lambda: pool.drop(kept), "a second drop")
    expect(UseAfterRelease, lambda: pool.restore(kept, "d"), "a snapshot that was dropped")
    pool.check_integrity()


def _speculates(make: MakeTables) -> None:
    size = PoolSize(slots=2, drafts=4)
    both = OraclePool(make, size)
    both.assign([Want("a"), Want("b")])
    both.step("b", [5])
    for drafts in range(size.drafts + 1):
        for accepted in range(drafts + 1):
            both.speculate("a", range(drafts), accepted)
            both.compare("b")
            both.step("a", [3])
            both.speculate("a", range(drafts), accepted)
    slot = both.slots["a"]
    expect(SlotMisuse, lambda: both.pool.checkpoint(slot, 5), "more drafts than places")
    expect(SlotMisuse, lambda: both.pool.accept(slot, 0), "accept without a checkpoint")
    both.pool.checkpoint(slot, 2)
    for use in (both.pool.step, both.pool.snapshot, lambda slot: both.pool.checkpoint(slot, 1)):
        expect(SlotMisuse, partial(use, slot), "a checkpoint that is open")
    for accepted in (-1, 3):
        expect(SlotMisuse, partial(both.pool.accept, slot, accepted), "more than proposed")
    both.pool.accept(slot, 0)
    both.compare_all()


def _restores(make: MakeTables) -> None:
    both = OraclePool(make, _SIZE)
    both.assign([Want("a")])
    both.snapshot("a")  # of a state that is zero still
    both.step("a", [1, 2])
    both.snapshot("a")
    zero, kept = both.kept
    error = expect(StateExhausted, lambda: both.pool.snapshot(both.slots["a"]), "one too many")
    check((error.needed, error.available, error.capacity) == (1, 0, 2), f"it says {error}")
    both.step("a", [3])
    both.assign([Want("b", kept), Want("c", zero)])
    both.step("b", [4])
    both.speculate("b", [5, 6], 1)
    both.release("a")
    both.assign([Want("d", kept)])  # copied: what "b" did to its own is not seen
    both.drop(kept)
    both.compare_all()


def _all_or_nothing(start: Start) -> Callable[[MakeTables], None]:
    """What fails on the device, at any point, changes nothing that anybody sees."""

    def run(make: MakeTables) -> None:
        for wrong in (StateWrong.FAILS, StateWrong.VANISHES):
            for call in range(2):  # zeroing, then copying
                both, faulty = _before_a_fault(make, start)
                kept = next(iter(both.kept))
                wants = [Want("x"), Want("y", kept), Want("z"), Want("w", kept)]
                failed = _fail(
                    both, faulty, StateFault(wrong, call), partial(both.pool.assign, wants)
                )
                check(failed or call > 0, "an operation that failed was not noticed")
                if failed and wrong is StateWrong.FAILS:
                    both.assign(wants)
                    both.compare_all()
            both, faulty = _before_a_fault(make, start)
            use = partial(both.pool.snapshot, both.slots["neighbour"])
            check(_fail(both, faulty, StateFault(wrong), use), "a copy that failed was not noticed")

    return run


def _before_a_fault(make: MakeTables, start: Start) -> tuple[OraclePool, FaultyTables]:
    """A pool with a neighbour, a snapshot, and slots that are dirty."""
    faulty: list[FaultyTables] = []

    def made(arrays: Sequence[TensorSpec], places: int) -> StateTables:
        faulty.append(FaultyTables(make(arrays, places)))
        return faulty[0]

    both = OraclePool(made, PoolSize(slots=6, drafts=1, snapshots=2), start)
    both.assign([Want("old"), Want("neighbour")])
    both.step("old", [1])
    both.step("neighbour", [2])
    both.snapshot("neighbour")
    both.release("old")
    return both, faulty[0]


def _fail(
    both: OraclePool, faulty: FaultyTables, fault: StateFault, use: Callable[[], object]
) -> bool:
    """Whether ``use`` met the fault; then everything is as it was."""
    free = (both.pool.available, both.pool.snapshots_available)
    faulty.faults = [replace(fault, call=faulty.calls + fault.call)]
    try:
        use()
    except (NullStateFailed, NullDeviceLost):
        now = (both.pool.available, both.pool.snapshots_available)
        check(now == free, f"free slots and snapshots went from {free} to {now}")
        if fault.wrong is StateWrong.FAILS:
            both.compare_all()
        return True
    return False


def _notices(make: MakeTables) -> None:
    """Dirt in the zero place, and zeroing that does nothing, are said, not read."""
    pool = SlotPool(make(ARRAYS, _SIZE.places), _SIZE)
    raw = bytearray(pool.tables.place_bytes)
    raw[-1] = 1
    pool.tables.write(ZERO_PLACE, bytes(raw))
    error = expect(StateCorrupt, pool.check_integrity, "dirt in the zero place")
    check(len(error.problems) == 1, f"{error.problems} for one problem")
    for wrong in (StateWrong.FORGETS, StateWrong.CORRUPTS):
        tables = FaultyTables(filled(make, _SIZE.places)[0], [StateFault(wrong)])
        expect(StateCorrupt, partial(SlotPool, tables, _SIZE), "no zero place")
        tables = FaultyTables(filled(make, _SIZE.places)[0], [StateFault(wrong, 1)])
        proven = SlotPool(tables, _SIZE, Start.PROVEN)
        expect(StateCorrupt, partial(proven.acquire, "a"), "a slot that is not zero")
        check(proven.available == _SIZE.slots, "a slot went that was never given")
        proven.acquire("a")
        proven.check_integrity()


def _random(start: Start) -> Callable[[MakeTables], None]:
    def run(make: MakeTables) -> None:
        for seed, size in enumerate((_SIZE, PoolSize(1), PoolSize(5, 3, 1))):
            run_requests(make, seed, 200, size, start)

    return run


STATE_CASES: tuple[StateCase, ...] = (
    *TABLE_CASES,
    *(StateCase(f"a slot reads as zero whenever it is lent ({s.value})", _reads_zero(s))
      for s in Start),
    StateCase("slots are bounded, and a refusal says by how much", _is_bounded),
    StateCase("handles of the past and of other pools are refused", _refuses_misuse),
    StateCase("any number of draft tokens is taken back", _speculates),
    StateCase("a snapshot is a copy, and restoring it another", _restores),
    *(StateCase(f"an assignment is whole or not at all ({s.value})", _all_or_nothing(s))
      for s in Start),
    StateCase("what does not become or stay zero is noticed", _notices),
    *(StateCase(f"random requests ({s.value})", _random(s)) for s in Start),
)  # fmt: skip
