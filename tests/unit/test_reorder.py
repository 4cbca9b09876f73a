"""Orders of devices: the best one, equal cards counted once, and never too many."""

from __future__ import annotations

import dataclasses
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arcpp.cli import main
from arcpp.devices import Device
from arcpp.errors import BadInput, DoesNotFit
from arcpp.planner import PlanRequest, make_plan
from arcpp.profile import load_profile
from arcpp.reorder import MOST_ORDERS, best_order
from arcpp.units import GiB

from .planner_models import BUNDLED, QWEN35_27B, write_config
from .test_plan import BARE, dense, device


def test_finds_the_better_order() -> None:
    """The head is large: it belongs on the larger card."""
    profile = dense(roles={"embed": 5, "final_norm": 0, "lm_head": 3000})
    cards = [device("big", 9000), device("small", 2500)]
    with pytest.raises(DoesNotFit):
        make_plan(profile, cards, BARE)
    order = best_order(profile, cards, BARE)
    assert [card.name for card in order] == ["small", "big"]
    assert make_plan(profile, order, BARE).num_blocks > 0


def test_asks_whoever_plans() -> None:
    """A plugin that likes the first order only: its plan is what orders are compared by."""
    cards, asked = [device("a", 9000), device("b", 9001)], []

    def planner(profile: Any, devices: Any, request: PlanRequest) -> Any:
        asked.append([card.name for card in devices])
        plan = make_plan(profile, devices, request)
        return dataclasses.replace(plan, kv_cache_tokens=2 if devices[0].name == "b" else 1)

    order = best_order(dense(), cards, BARE, planner)
    assert [card.name for card in order] == ["b", "a"]
    assert asked == [["a", "b"], ["b", "a"]]


def test_for_decode_needs_no_bandwidths(tmp_path: Path) -> None:
    """The head's 2.4 GiB are read every token: on the card, not on the processor."""
    profile = load_profile(write_config(tmp_path, QWEN35_27B), weights_dtype="int4")
    cards = [device("B60", 23 * GiB), device("CPU", 64 * GiB)]
    request = PlanRequest(maximize="decode", max_model_len=4096)
    order = best_order(profile, cards, request)
    assert [card.name for card in order] == ["CPU", "B60"]
    assert make_plan(profile, order, request).partition.counts == (1, 63)


def tried(cards: list[Device], request: PlanRequest = BARE) -> list[list[str]]:
    """Names in every order that is planned."""
    seen: list[list[str]] = []

    def planner(profile: Any, devices: Any, request: PlanRequest) -> Any:
        seen.append([card.name for card in devices])
        return make_plan(profile, devices, request)

    best_order(dense(8), cards, request, planner)
    return seen


def test_equal_cards_are_counted_once() -> None:
    small, large = [device(f"s{i}", 9000) for i in range(3)], [device("l", 18000)]
    assert [order.index("l") for order in tried(large + small)] == [0, 1, 2, 3]
    assert tried(small) == [["s0", "s1", "s2"]]
    assert len(tried([device(f"c{i}", 9000) for i in range(8)])) == 1


@pytest.mark.parametrize(
    ("cards", "request_", "orders"),
    [
        ([device("a", 9000), device("b", 9000)], dataclasses.replace(BARE, reserves={"b": 1}), 2),
        ([device("a", 9000, bandwidth=1.0), device("b", 9000, bandwidth=2.0)], BARE, 2),
        ([device("a", 9000, free=8000), device("b", 9000)], BARE, 2),
        ([device("a", 9000), device("cpu", 9000)], BARE, 2),
        ([device("A770", 9000), device("B580", 9000)], BARE, 2),
        # Two stages on one card: which of two equal cards has them is the same, where is not.
        ([device("a", 9000), device("a", 9000), device("b", 9000)], BARE, 3),
        ([device("a", 9000), device("b", 9000), device("a", 9000), device("b", 9000)], BARE, 3),
    ],
)
def test_cards_that_differ_in_anything_a_plan_depends_on_are_not_equal(
    cards: list[Device], request_: PlanRequest, orders: int
) -> None:
    assert len(tried(cards, request_)) == orders


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from([2500, 4000, 9000]), min_size=2, max_size=4),
    st.sampled_from(["context", "decode"]),
)
def test_no_order_at_all_is_better(sizes: list[int], goal: str) -> None:
    cards = [device(f"d{i}", size, bandwidth=100.0 + size // 2000) for i, size in enumerate(sizes)]
    profile = dense(6, roles={"embed": 1500, "final_norm": 0, "lm_head": 800})
    request = dataclasses.replace(BARE, maximize=goal)

    def value(order: tuple[Device, ...]) -> float:
        try:
            plan = make_plan(profile, order, request)
        except DoesNotFit:
            return -1
        limit = plan.decode_tokens_per_s_limit
        return plan.kv_cache_tokens if goal == "context" or limit is None else limit

    best = best_order(profile, cards, request)
    assert value(best) == max(map(value, permutations(cards)))


def test_more_orders_than_can_be_tried_are_refused_before_any_is() -> None:
    def planner(*_: object) -> Any:
        raise AssertionError("was planned")

    six = [device(f"d{i}", 9000 + i) for i in range(6)]
    assert len(tried(six)) == MOST_ORDERS == 720
    for cards in ([*six, device("d6", 9006)], [device(f"d{i}", 9000 + i) for i in range(300)]):
        with pytest.raises(BadInput, match=r"--reorder: \d+ devices .* too many to try"):
            best_order(dense(400), cards, BARE, planner)


def test_a_refusal_nobody_reads_looks_for_no_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    def nearest(*_: object) -> Any:
        raise AssertionError("was looked for")

    monkeypatch.setattr("arcpp.refusal.nearest_setting", nearest)
    cards = [device("a", 60), device("b", 70)]
    assert best_order(dense(), cards, BARE) == tuple(cards)


@pytest.mark.parametrize(
    ("option", "value"), [("--kv-memory", "8MiB"), ("--from-log", str(BUNDLED / "config.json"))]
)
def test_what_belongs_to_an_order_cannot_be_reordered(
    capsys: pytest.CaptureFixture[str], option: str, value: str
) -> None:
    cards = ["--device", "a=1GiB", "--device", "b=2GiB", "--reorder"]
    assert main(["plan", str(BUNDLED), *cards, option, value]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"arcpp: {option}: ")
    assert captured.err.endswith("it cannot be used with --reorder\n")
