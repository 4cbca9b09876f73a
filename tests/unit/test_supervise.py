"""Faults as values, deadlines, and the budget of restarts."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arcpp.errors import BadInput
from arcpp.supervise import (
    Deadline,
    Fault,
    FaultAction,
    FaultKind,
    RestartPolicy,
    StepDeadline,
    classify,
    root_cause,
)

LOST = Fault(FaultKind.DEVICE_LOST, "UR_RESULT_ERROR_DEVICE_LOST", "reset it", "xpu:1", 1, 1, 42)


class Clock:
    """A clock that goes when told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_fault_is_one_line_and_survives_json() -> None:
    wanted = "DeviceLost on xpu:1 (stage 1, step 42): UR_RESULT_ERROR_DEVICE_LOST; reset it"
    assert str(LOST) == wanted
    assert Fault.from_json(json.loads(json.dumps(LOST.to_json()))) == LOST
    assert str(Fault(FaultKind.PEER_LOST, "a\nb", "")) == "PeerLost: a b"
    odd = Fault(FaultKind.STAGE_DIED, "x", "y", stage=1, rank=3)
    assert str(odd) == "StageDied (stage 1, rank 3): x; y"


def test_a_fault_of_another_version_is_read() -> None:
    written = {**LOST.to_json(), "since": 3}
    del written["step"], written["advice"]
    assert Fault.from_json(written).stage == 1
    assert Fault.from_json(written).step is None


@pytest.mark.parametrize(
    "written",
    [None, [], "DeviceLost", {}, {"kind": 3}, {"kind": "Lost"}, {"kind": ["DeviceLost"]}]
    + [{"kind": "DeviceLost", key: value}
       for key, value in (("stage", "1"), ("stage", True), ("cause", 3), ("consequence", 1))],
)  # fmt: skip
def test_what_is_no_fault_is_refused(written: Any) -> None:
    with pytest.raises(BadInput) as caught:
        Fault.from_json(written)
    assert len(str(caught.value).splitlines()) == 1


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(),
                    lambda inner: st.dictionaries(st.sampled_from(["kind", "cause", "stage"]),
                                                  inner | st.just("DeviceLost"))))  # fmt: skip
def test_any_json_is_read_or_refused(written: object) -> None:
    try:
        fault = Fault.from_json(written)
    except BadInput:
        return
    assert len(str(fault).splitlines()) == 1


def test_words_are_what_people_see() -> None:
    assert f"{FaultKind.DEVICE_LOST} {FaultAction.GIVE_UP}" == "DeviceLost give up"


def _fault(kind: FaultKind, stage: int | None, consequence: bool = False) -> Fault:
    return Fault(kind, "", "", stage=stage, consequence=consequence)


@pytest.mark.parametrize(
    ("faults", "winner"),
    [
        ([_fault(FaultKind.PEER_LOST, 0, True), _fault(FaultKind.DEVICE_LOST, 1)], 1),
        ([_fault(FaultKind.DEVICE_LOST, 2), _fault(FaultKind.DEVICE_LOST, 1)], 1),
        ([_fault(FaultKind.STAGE_DIED, None, True), _fault(FaultKind.STAGE_DIED, 2, True)], 1),
        ([classify(exit_code=1, stage=0), classify(exit_code=-9, stage=1)], 1),
        ([classify(exit_code=-15, stage=0), _fault(FaultKind.STAGE_FAILED, 1)], 1),
        ([_fault(FaultKind.STAGE_STALLED, 1), classify(exit_code=-9, stage=0)], 1),
        ([_fault(FaultKind.STAGE_STALLED, 1), _fault(FaultKind.PEER_LOST, 0, True)], 0),
        ([_fault(FaultKind.OUT_OF_DEVICE_MEMORY, 1), _fault(FaultKind.NON_FINITE, 0)], 0),
        ([classify(exit_code=1, stage=1), _fault(FaultKind.PEER_LOST, 0, True)], 0),
    ],
)
def test_the_root_cause_of_an_incident(faults: list[Fault], winner: int) -> None:
    assert root_cause(faults) is faults[winner]
    assert root_cause(faults[::-1]) is faults[winner]


def test_no_faults_have_no_cause() -> None:
    with pytest.raises(BadInput):
        root_cause([])


def test_a_deadline() -> None:
    clock = Clock()
    deadline, never = Deadline(5, clock), Deadline(None, clock)
    assert (deadline.remaining(), deadline.expired) == (5, False)
    clock.now += 6
    assert (deadline.remaining(), deadline.expired) == (0, True)
    assert (never.remaining(), never.expired) == (None, False)


def _steps(*pairs: tuple[int, float], times: int = 10) -> StepDeadline:
    limits = StepDeadline(floor=1, ceiling=300)
    for tokens, seconds in pairs:
        for _ in range(times):
            limits.observe(tokens, seconds)
    return limits


def test_before_anything_was_measured_a_step_may_take_the_most() -> None:
    assert _steps().limit(1) == 300
    assert _steps((8, 0.5), times=2).limit(8) == 300, "two are not enough"


def test_a_step_may_take_ten_times_what_its_like_took() -> None:
    limits = _steps((8, 0.5), (2048, 6))
    assert limits.limit(8) == limits.limit(12) == 5
    assert limits.limit(2048) == 60
    assert limits.limit(16) == 60, "not measured: at least what a larger one took"
    assert limits.limit(4096) == 120, "not measured: as many times as its tokens"
    assert limits.limit(1) == 5
    assert limits.limit(0) == 5
    assert limits.limit(1 << 40) == 300


def test_a_small_step_is_never_given_less_than_the_floor() -> None:
    assert _steps((1, 0.001)).limit(1) == 1


def test_one_slow_step_neither_shrinks_the_limit_nor_raises_it_for_good() -> None:
    limits = _steps((8, 0.5))
    limits.observe(8, 60)
    assert limits.limit(8) == 5
    limits.observe(8, 0.000001)
    limits.observe(8, -3)
    assert limits.limit(8) == 5
    first = StepDeadline(floor=1, ceiling=300)
    for seconds in (60, 0.5, 0.5):
        first.observe(8, seconds)
    assert first.limit(8) == 300, "too few to know which is the accident"


def test_a_machine_that_became_slower_is_believed() -> None:
    limits = _steps((8, 0.5))
    for _ in range(2):
        limits.observe(8, 4)
    assert limits.limit(8) == 40
    for _ in range(70):
        limits.observe(8, 0.5)
    assert limits.limit(8) == 5


def test_what_a_person_set_wins() -> None:
    limits = StepDeadline(floor=30, ceiling=300, fixed=7)
    for _ in range(10):
        limits.observe(1, 100)
    assert limits.limit(1) == limits.limit(1 << 20) == 7


@pytest.mark.parametrize("values", [(0, 1, 2), (5, 4, 2), (1, 2, 0.5)])
def test_step_deadlines_that_cannot_be(values: tuple[float, float, float]) -> None:
    with pytest.raises(BadInput):
        StepDeadline(*values)


@given(st.lists(st.tuples(st.integers(0, 1 << 16), st.floats(0, 1e6)), max_size=80))
def test_limits_stay_between_floor_and_ceiling(pairs: list[tuple[int, float]]) -> None:
    limits = _steps(*pairs, times=1)
    assert all(1 <= limits.limit(tokens) <= 300 for tokens in (0, 1, 7, 4096, 1 << 30))


def test_the_budget_is_per_window_and_the_end_is_the_end() -> None:
    clock = Clock()
    policy = RestartPolicy(budget=2, window=600, backoff=1, clock=clock)
    decisions = []
    for _ in range(2):
        decisions.append(policy.on_fault(LOST))
        policy.recovered()
        clock.now += 10
    assert [(one.restart, one.delay, one.remaining) for one in decisions] == [
        (True, 0, 1),
        (True, 0, 0),
    ]
    assert not policy.on_fault(LOST).restart
    clock.now += 10_000
    assert not policy.on_fault(LOST).restart
    assert len(policy.history) == 4
    text = policy.history_text().splitlines()
    assert len(text) == 4
    assert text[0] == f"10020 s ago: {LOST}"


def test_faults_leave_the_window() -> None:
    clock = Clock()
    policy = RestartPolicy(budget=1, window=60, backoff=1, clock=clock)
    for _ in range(5):
        assert policy.on_fault(LOST).restart
        policy.recovered()
        clock.now += 60
    assert len(policy.history) == 5


def test_the_wait_doubles_until_there_is_progress() -> None:
    clock = Clock()
    policy = RestartPolicy(budget=99, window=60, backoff=2, clock=clock)
    assert [policy.on_fault(LOST).delay for _ in range(8)] == [0, 2, 4, 8, 16, 32, 60, 60]
    policy.recovered()
    assert policy.on_fault(LOST).delay == 0


def test_without_a_budget_nothing_is_restarted() -> None:
    assert not RestartPolicy(0, 60, 1).on_fault(LOST, trial=True).restart


def test_a_trial_costs_nothing_while_somebody_gets_on() -> None:
    policy = RestartPolicy(budget=2, window=600, backoff=1)
    assert policy.on_fault(LOST).remaining == 1
    assert policy.on_fault(LOST).remaining == 0
    for _ in range(20):
        assert policy.on_fault(LOST, trial=True).restart
        policy.recovered()


def test_a_trial_in_which_nothing_works_ends() -> None:
    policy = RestartPolicy(budget=3, window=600, backoff=1)
    taken = [policy.on_fault(LOST, trial=index > 1).restart for index in range(8)]
    assert taken == [True] * 5 + [False] * 3


@pytest.mark.parametrize("values", [(-1, 1, 1), (1, 0, 1), (1, 1, -1)])
def test_policies_that_cannot_be(values: tuple[int, float, float]) -> None:
    with pytest.raises(BadInput):
        RestartPolicy(*values)
