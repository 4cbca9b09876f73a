"""Two stages, cut by a plan, joined by a link, over slots that were used before: the same tokens
as the whole model in one process, where every request has state that nobody else ever had."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tests.support.hybrid_model import Sizes  # noqa: E402
from tests.support.link_peers import DEVICES, Pair  # noqa: E402
from tests.support.pipeline import (  # noqa: E402
    Found,
    Job,
    PooledPlaces,
    plan_of,
    planned_job,
    random_requests,
    run_both,
    run_one,
    schedule,
)

from arcpp.settings import Settings  # noqa: E402
from arcpp.state import SlotPool  # noqa: E402

SMALL = Sizes(
    layers=8, hidden=256, inner=640, vocab=1024, heads=4, size=32, delta_keys=2, deltas=4, length=48
)
SLOTS, REQUESTS = 3, 8


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    made = Pair(tmp_path_factory.mktemp("pipeline") / "pair")
    yield made
    made.end()


@pytest.fixture(scope="module")
def alone(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Job, Found]]:
    """By dtype: a job, and what one process found."""
    found = {}
    for dtype in ("float32", "bfloat16"):
        job, _ = planned_job(
            SMALL, dtype, DEVICES, requests=random_requests(REQUESTS, SMALL), slots=SLOTS,
            folder=tmp_path_factory.mktemp(dtype),
        )  # fmt: skip
        found[dtype] = job, run_one(pair, job)
    return found


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_two_stages_give_the_tokens_of_one_process(
    dtype: str, pair: Pair, alone: dict[str, tuple[Job, Found]]
) -> None:
    job, one = alone[dtype]
    first, last = run_both(pair, job, Settings())
    assert first.texts == one.texts
    assert [len(text) for text in first.texts] == [request.answer for request in job.requests]
    assert first.slots == last.slots
    assert len(first.slots) == REQUESTS
    assert set(first.slots) == set(range(SLOTS))


class Stale(PooledPlaces):
    """A slot that was used before starts where it was left, instead of at zero."""

    def __init__(self, pool: SlotPool) -> None:
        super().__init__(pool)
        self.left: set[int] = set()

    def windows(self, requests: Sequence[int]) -> list[tuple[int, int]]:
        found = super().windows(requests)
        stale = [(write if write in self.left else read, write) for read, write in found]
        self.left |= {write for _, write in found}
        return stale


class Swapped(PooledPlaces):
    """Once, two requests read each other's state."""

    done = False

    def windows(self, requests: Sequence[int]) -> list[tuple[int, int]]:
        found = super().windows(requests)
        if not self.done and len(found) == SLOTS and all(read for read, _ in found):
            self.done = True
            (one, to), (other, at) = found[:2]
            found[:2] = (other, to), (one, at)
        return found


@pytest.mark.parametrize("places", [Stale, Swapped])
def test_state_that_is_not_its_own_shows(
    places: type, pair: Pair, alone: dict[str, tuple[Job, Found]]
) -> None:
    """The comparison above can fail."""
    job, one = alone["float32"]
    first, _ = run_both(pair, job, Settings(), places)
    assert first.texts != one.texts
    if places is Stale:  # those that had their slot first are right
        assert first.texts[:SLOTS] == one.texts[:SLOTS]


def test_the_cut_is_the_plans_for_unequal_devices(tmp_path: Path) -> None:
    for dtype in ("float32", "bfloat16"):
        profile, plan = plan_of(SMALL, dtype, SLOTS, tmp_path)
        low, high = plan.partition.counts
        assert low > high
        assert plan.max_num_seqs == SLOTS
        held = [stage.weights_bytes for stage in plan.stages]
        assert all(size < profile.weights_bytes for size in held)


def test_layers_are_as_large_as_the_plan_says(
    tmp_path: Path, alone: dict[str, tuple[Job, Found]]
) -> None:
    for dtype, (_, one) in alone.items():
        profile, _ = plan_of(SMALL, dtype, SLOTS, tmp_path)
        assert one.layer_bytes == [layer.weights_bytes for layer in profile.layers]


def test_prompts_and_decoding_share_steps(alone: dict[str, tuple[Job, Found]]) -> None:
    steps = list(schedule(alone["float32"][0]))
    mixed = [turns for turns in steps if len({turn.count == 1 for turn in turns}) > 1]
    assert len(mixed) >= REQUESTS - 2
