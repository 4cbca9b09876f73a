"""Any order of operations on a pool, beside an oracle, shrunk to the shortest that fails."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tests.support.state_kinds import KINDS, NULL, Kind

from arcpp.errors import StateError
from arcpp.state import PoolSize, Start, Want
from arcpp.state.ring import Ring
from arcpp.testing import OraclePool

TOKENS = st.integers(0, 9)
SIZES = st.builds(PoolSize, st.integers(1, 4), st.integers(0, 3), st.integers(0, 2))
EFFORT = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


class PoolMachine(RuleBasedStateMachine):
    """kind: of tables; set by subclasses."""

    kind: Kind
    both: OraclePool
    owners: int

    @initialize(size=SIZES, start=st.sampled_from(Start))
    def make(self, size: PoolSize, start: Start) -> None:
        self.both, self.owners = OraclePool(self.kind.make, size, start), 0

    @rule(count=st.integers(1, 3), data=st.data())
    def assign(self, count: int, data: st.DataObject) -> None:
        kept = st.sampled_from([None, *self.both.kept])
        wants = [Want(self.owners + index, data.draw(kept)) for index in range(count)]
        self.owners += count
        self.both.assign(wants)

    @precondition(lambda self: self.both.slots)
    @rule(data=st.data(), tokens=st.lists(TOKENS, min_size=1, max_size=5))
    def step(self, data: st.DataObject, tokens: list[int]) -> None:
        self.both.step(self._any(data), tokens)

    @precondition(lambda self: self.both.slots)
    @rule(data=st.data(), drafts=st.lists(TOKENS, max_size=3), accepted=st.integers(0, 3))
    def speculate(self, data: st.DataObject, drafts: list[int], accepted: int) -> None:
        drafts = drafts[: self.both.size.drafts]
        self.both.speculate(self._any(data), drafts, min(accepted, len(drafts)))

    @precondition(lambda self: self.both.slots)
    @rule(data=st.data())
    def snapshot(self, data: st.DataObject) -> None:
        self.both.snapshot(self._any(data))

    @precondition(lambda self: self.both.kept)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        self.both.drop(data.draw(st.sampled_from(list(self.both.kept))))

    @precondition(lambda self: self.both.slots)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        self.both.release(self._any(data))

    @invariant()
    def everybody_has_their_own(self) -> None:
        self.both.compare_all()

    def _any(self, data: st.DataObject) -> int:
        return int(data.draw(st.sampled_from(list(self.both.slots))))


def _machine(kind: Kind) -> type[PoolMachine]:
    return type("Machine", (PoolMachine,), {"kind": kind})


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_any_order_of_operations(kind: Kind) -> None:
    if kind.missing:
        pytest.skip(f"{kind.needs} is not installed")
    run_state_machine_as_test(_machine(kind), settings=EFFORT)


def test_a_dirty_start_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine above can fail."""
    made = Ring.__init__

    def at_its_own(self: Ring, *args: object, first: int, size: int, start: int) -> None:
        made(self, *args, first=first, size=size, start=first)  # type: ignore[arg-type]

    monkeypatch.setattr(Ring, "__init__", at_its_own)
    found = settings(EFFORT, phases=[Phase.generate], database=None)
    with pytest.raises((AssertionError, StateError)):
        run_state_machine_as_test(_machine(NULL), settings=found)
