"""Which memory figures are believed: a fake of every report, and any numbers at all."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arcpp.devices import DeviceMemory
from arcpp.probe import DECLARED, HOST, Reading, Trial, after_trial, judge
from arcpp.units import GiB, MiB

GOOD = Reading("sysman", 12 * GiB, 10 * GiB)


def test_the_lowest_possible_free_wins_and_its_source_is_named() -> None:
    verdict = judge([Reading("torch", 12 * GiB, 11 * GiB), GOOD])
    assert verdict.memory == DeviceMemory(12 * GiB, 10 * GiB, source="sysman")
    assert verdict.free_known
    assert not verdict.rejected
    assert verdict.doubt is None


@pytest.mark.parametrize(
    ("reading", "reason"),
    [
        (Reading("torch", 12 * GiB, 0), "0 bytes free of 12.00 GiB"),  # vllm#53990, 2x B70
        (Reading("torch", 12 * GiB, -1), "negative"),
        (Reading("torch", 12 * GiB, 13 * GiB), "more free"),
        (Reading("torch", 0, 0), "a total of 0"),
        (Reading("torch", -5, 1), "a total of -5"),
        (Reading("torch", 2**60, 2**59), "absurd"),
        (Reading("torch", 5, 4), "absurd"),
        (Reading("torch", None, None), "no total"),
        (Reading("torch", error="RuntimeError: doesn't support querying"), "doesn't support"),
        (Reading("torch", 1.5, 1), "no number of bytes"),  # type: ignore[arg-type]
        (Reading("torch", True, True), "no number of bytes"),
        (Reading("torch", 12 * GiB, float("nan")), "no number of bytes"),  # type: ignore[arg-type]
    ],
)
def test_impossible_figures_are_put_aside_with_the_reason(reading: Reading, reason: str) -> None:
    verdict = judge([reading, GOOD])
    assert verdict.memory == DeviceMemory(12 * GiB, 10 * GiB, source="sysman")
    assert [rejected.reading for rejected in verdict.rejected] == [reading]
    assert reason in verdict.rejected[0].reason


def test_free_0_with_a_right_total_leaves_the_total() -> None:
    verdict = judge([Reading(HOST, 30 * GiB, 0)], held=2 * GiB)
    assert verdict.memory == DeviceMemory(30 * GiB, 28 * GiB, source="host's total, free unknown")
    assert not verdict.free_known
    assert verdict.doubt is not None


def test_all_of_it_free_is_believed_and_doubted() -> None:  # A770, compute-runtime#750
    verdict = judge([Reading("torch", 15 * GiB, 15 * GiB)])
    assert verdict.memory is not None
    assert verdict.memory.free == 15 * GiB
    assert verdict.doubt is not None


def test_a_total_alone_is_kept_as_a_total() -> None:
    verdict = judge([Reading("OpenVINO", 12 * GiB), GOOD])
    assert verdict.memory == DeviceMemory(12 * GiB, 10 * GiB, source="sysman")
    assert len(verdict.accepted) == 2


def test_the_hosts_total_is_the_one_it_budgets() -> None:
    verdict = judge([Reading("sysman", 32 * GiB, 31 * GiB), Reading(HOST, 30 * GiB, 0)])
    assert verdict.memory == DeviceMemory(30 * GiB, 30 * GiB, source="sysman")


def test_what_is_declared_wins() -> None:
    verdict = judge([GOOD, Reading(DECLARED, 12 * GiB, 12 * GiB)])
    assert verdict.memory == DeviceMemory(12 * GiB, 12 * GiB, source="declared")
    assert verdict.doubt is None


def test_nobody_knows_anything() -> None:
    verdict = judge([Reading("torch", 0, 0), Reading("sysman", error="device lost")])
    assert verdict.memory is None
    assert len(verdict.rejected) == 2
    assert judge([]).memory is None


ANY = st.none() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5) | st.booleans()


@given(st.lists(st.tuples(ANY, ANY), max_size=5), st.integers(-(2**40), 2**62))
def test_any_figures_end_in_possible_memory_or_none(
    figures: list[tuple[Any, Any]], held: int
) -> None:
    readings = [Reading(f"source {n}", *pair) for n, pair in enumerate(figures)]
    verdict = judge(readings, held=held)
    assert len(verdict.accepted) + len(verdict.rejected) == len(readings)
    if verdict.memory is not None:
        assert 0 < verdict.memory.free <= verdict.memory.total


@given(st.permutations([GOOD, Reading("a", 12 * GiB, 11 * GiB), Reading("b", 12 * GiB, 0)]))
def test_the_order_of_sources_is_irrelevant(readings: list[Reading]) -> None:
    assert judge(readings).memory == judge([GOOD]).memory


def test_a_trial_lowers_the_free_figure() -> None:
    verdict = after_trial(judge([GOOD]), Trial(10 * GiB, 7 * GiB, "out of memory", True))
    assert verdict.memory is not None
    assert verdict.memory.free == 7 * GiB
    assert "trial allocation" in verdict.memory.source
    assert verdict.doubt is None


def test_a_trial_that_held_everything_ends_the_doubt_and_changes_nothing() -> None:
    doubted = judge([Reading("torch", 15 * GiB, 15 * GiB)])
    verdict = after_trial(doubted, Trial(14 * GiB, 14 * GiB, None, True))
    assert verdict.memory == doubted.memory
    assert verdict.doubt is None


def test_a_free_figure_that_does_not_move_stays_doubtful() -> None:  # pytorch#161381
    verdict = after_trial(judge([GOOD]), Trial(1 * GiB, 1 * GiB, None, False))
    assert verdict.doubt is not None
    assert "did not move" in verdict.doubt


def test_a_trial_that_got_nothing_stops_nothing() -> None:
    verdict = after_trial(judge([GOOD]), Trial(8 * GiB, 0, "RuntimeError: device lost"))
    assert verdict.memory == judge([GOOD]).memory
    assert "device lost" in str(verdict.doubt)


def test_a_trial_of_an_unknown_device_changes_nothing() -> None:
    assert after_trial(judge([]), Trial(1 * MiB, 1 * MiB)) == judge([])
