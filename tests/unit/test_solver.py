"""The solver against brute force, and what a plan must never do."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from arcpp import solver
from arcpp.memory.layout import UNBOUNDED
from arcpp.problem import blocks_alone, blocks_within
from arcpp.solver import Need, Problem


def every_partition(layers: int, stages: int) -> Iterator[tuple[int, ...]]:
    for cuts in combinations(range(1, layers), stages - 1):
        yield tuple(b - a for a, b in pairwise((0, *cuts, layers)))


@st.composite
def problems(draw: st.DrawFn, *, shared: bool | None = None) -> Problem:
    layers = draw(st.integers(1, 12))
    stages = draw(st.integers(1, min(4, layers)))
    number = draw(st.integers(1, stages)) if shared else stages
    owners = tuple(range(stages))
    if shared:
        owners = tuple(draw(st.integers(0, number - 1)) for _ in range(stages))
    sizes = st.integers(0, 60)
    weights = draw(st.lists(sizes, min_size=layers, max_size=layers))
    blocks = draw(st.lists(st.integers(0, 9), min_size=layers, max_size=layers))
    extra = draw(st.lists(sizes, min_size=stages, max_size=stages))
    prices = draw(st.lists(st.integers(0, 3), min_size=stages, max_size=stages))
    needs_cache = draw(st.booleans())
    tables = draw(st.lists(st.integers(1, 6), min_size=layers, max_size=layers))
    caps = draw(st.lists(st.sampled_from([UNBOUNDED, 6, 12]), min_size=stages, max_size=stages))
    odd = draw(st.lists(st.integers(0, 1), min_size=layers, max_size=layers))

    def need(stage: int, low: int, high: int) -> Need | None:
        # As in vLLM: two groups, and the wider one on this stage sets the bytes per block.
        first = sum(b for b, o in zip(blocks[low:high], odd[low:high], strict=True) if o)
        per_block = max(first, sum(blocks[low:high]) - first)
        if needs_cache and per_block == 0:
            return None
        fixed = extra[stage] + sum(weights[low:high])
        # As in OpenVINO: the largest table of a stage's layers is one allocation.
        limit = caps[stage] // max(tables[low:high])
        return Need(fixed, per_block, prices[stage] * (fixed + 1), limit)

    budgets = tuple(draw(st.lists(st.integers(0, 400), min_size=stages, max_size=stages)))
    return Problem(layers, owners, budgets, need, draw(st.integers(1, 4)))


def rank(problem: Problem, counts: tuple[int, ...]) -> tuple[object, ...]:
    """What is best, written as the contract says it; smaller is better."""
    cuts, low = 0, 0
    for count in counts[:-1]:
        low += count
        cuts += 1 if low % problem.period else 0
    cost = solver.cost_of(problem, counts)
    slowest = solver.slowest_of(problem, counts)
    order = tuple(-count for count in counts)
    return -solver.blocks_of(problem, counts), cost, cuts, slowest, order


def brute(problem: Problem, least: int) -> tuple[int, ...] | None:
    fitting = [
        counts
        for counts in every_partition(problem.layers, len(problem.devices))
        if solver.blocks_of(problem, counts) >= least
    ]
    return min(fitting, key=lambda counts: rank(problem, counts), default=None)


@settings(max_examples=300, deadline=None)
@given(problems(), st.integers(0, 8))
def test_finds_what_brute_force_finds(problem: Problem, least: int) -> None:
    assert solver.solve(problem, least) == brute(problem, least)


@settings(max_examples=200, deadline=None)
@given(problems(shared=True), st.integers(0, 8))
def test_finds_what_brute_force_finds_with_shared_devices(problem: Problem, least: int) -> None:
    assert solver.solve(problem, least) == brute(problem, least)


@settings(max_examples=150, deadline=None)
@given(problems(shared=True), st.integers(0, 8))
def test_cheapest_is_cheapest(problem: Problem, least: int) -> None:
    fitting = [
        counts
        for counts in every_partition(problem.layers, len(problem.devices))
        if solver.blocks_of(problem, counts) >= least
    ]
    found = solver.solve_cheapest(problem, least)
    if found is None:
        assert not fitting
        return
    cost = min(solver.cost_of(problem, counts) for counts in fitting)
    assert solver.cost_of(problem, found) == cost
    most = max(
        solver.blocks_of(problem, counts)
        for counts in fitting
        if solver.cost_of(problem, counts) == cost
    )
    assert solver.blocks_of(problem, found) == most


@settings(max_examples=150, deadline=None)
@given(problems(), st.integers(0, 3), st.integers(0, 100))
def test_more_memory_never_gives_fewer_blocks(problem: Problem, which: int, more: int) -> None:
    before = solver.solve(problem)
    if before is None:
        return
    index = which % len(problem.budgets)
    budgets = list(problem.budgets)
    budgets[index] += more
    richer = Problem(problem.layers, problem.devices, tuple(budgets), problem.need, problem.period)
    after = solver.solve(richer)
    assert after is not None
    assert solver.blocks_of(richer, after) >= solver.blocks_of(problem, before)


@settings(max_examples=300, deadline=None)
@given(st.integers(-5, 200), st.integers(0, 100), st.integers(0, 9), st.integers(0, 50))
def test_one_need_alone_is_as_many_together(
    budget: int, fixed: int, per_block: int, limit: int
) -> None:
    need = Need(fixed, per_block, limit=limit)
    assert blocks_alone(budget, need) == blocks_within(budget, [need])
