"""The best partition, exactly: dynamic programming over cuts. See :mod:`.problem` for what is best.

Where every stage has its own device one state per layer is enough; where stages share devices
:mod:`.sharing` keeps labels.
"""

from __future__ import annotations

from collections.abc import Callable

from .memory.layout import UNBOUNDED
from .problem import Need, Problem, blocks_alone, blocks_of, blocks_within, cost_of, slowest_of
from .sharing import Suffixes

__all__ = [
    "Need",
    "Problem",
    "blocks_of",
    "blocks_within",
    "cheapest",
    "cost_of",
    "slowest_of",
    "solve",
    "solve_cheapest",
]


def solve(problem: Problem, least_blocks: int = 0) -> tuple[int, ...] | None:
    """Layers per stage of the best partition with at least ``least_blocks``, or None."""
    if len(problem.devices) > problem.layers:
        return None
    most = _most_shared(problem, least_blocks) if problem.sharing else _most_blocks(problem)
    return None if most < max(0, least_blocks) else cheapest(problem, most)


def _most_shared(problem: Problem, least: int) -> int:
    """Most blocks over all partitions, at least ``least``; negative when none fits."""

    def held(blocks: int) -> int:
        found = Suffixes(problem, blocks, feasible_only=True).find()
        return -1 if found is None else blocks_of(problem, found)

    # On one device what is found is best, or nearly: one block more often ends it.
    return _climb(held, max(0, least), short=len(set(problem.devices)) == 1)


def solve_cheapest(problem: Problem, enough: int) -> tuple[int, ...] | None:
    """The least costly partition with ``enough`` blocks; of those, one with the most blocks."""
    if len(problem.devices) > problem.layers:
        return None
    most = _cheap_shared(problem, enough) if problem.sharing else _cheap_blocks(problem, enough)
    return None if most < 0 else cheapest(problem, most)


def _cheap_shared(problem: Problem, enough: int) -> int:
    """Most blocks, at least ``enough``, of the least costly partitions; negative for none."""
    first = cheapest(problem, enough)
    if first is None:
        return -1
    least = cost_of(problem, first)

    def held(blocks: int) -> int:
        found = cheapest(problem, blocks)
        return -1 if found is None or cost_of(problem, found) > least else blocks_of(problem, found)

    return _climb(held, enough)


def _cheap_blocks(problem: Problem, enough: int) -> int:
    """As _cheap_shared(), one budget per stage: costs add up, so less cost first is exact."""
    best: dict[int, tuple[int, int]] = {0: (0, -UNBOUNDED)}
    for stage, device in enumerate(problem.devices):
        budget = problem.budgets[device]
        after: dict[int, tuple[int, int]] = {}
        for low, (cost, blocks) in best.items():
            for high in problem.highs(stage, low):
                need = problem.need(stage, low, high)
                if need is None:
                    continue
                here = blocks_alone(budget, need)
                if here < enough:
                    break  # a longer stage holds fewer still
                choice = cost + need.cost, max(blocks, -here)
                if high not in after or choice < after[high]:
                    after[high] = choice
        best = after
    return -best[problem.layers][1] if problem.layers in best else -1


def _climb(held: Callable[[int], int], start: int, *, short: bool = False) -> int:
    """Most blocks that anything holds; negative when nothing holds ``start``.

    held(blocks): what is held, no less, by something that holds ``blocks``; negative when
    nothing does. The search goes on from there. short: always try one block more.
    """
    low = held(start)
    if low < 0:
        return -1
    step, high = 1, UNBOUNDED + 1
    while low + step < high:
        more = held(low + step)
        if more < 0:
            high = low + step
        else:
            low = more
        if high <= UNBOUNDED:
            step = max(1, (high - low) // 2)
        elif not short:
            step = max(step * 2, low // 8)
    return low


def _last_true(holds: Callable[[int], bool], start: int) -> int | None:
    """Largest number from ``start`` on for which ``holds``, which once false stays false."""
    if not holds(start):
        return None
    step = 1
    while start + step <= UNBOUNDED and holds(start + step):
        start, step = start + step, step * 2
    while step > 1:
        step //= 2
        if start + step <= UNBOUNDED and holds(start + step):
            start += step
    return start


def _last_within(holds: Callable[[int], bool], start: int, end: int) -> int | None:
    """As _last_true(), not beyond ``end``."""
    return _last_true(lambda number: number <= end and holds(number), start)


def _greedy(problem: Problem, blocks: int) -> bool:
    """Whether filling stages in turn, each as far as ``blocks`` allow, places every layer.

    Exact where needs grow with the layers; used only as a lower bound.
    """
    low, stages = 0, len(problem.devices)
    for stage, device in enumerate(problem.devices):
        budget, rest = problem.budgets[device], stages - stage - 1

        def fits(high: int, *, index: int = stage, start: int = low, room: int = budget) -> bool:
            need = problem.need(index, start, high)
            return need is not None and blocks <= blocks_alone(room, need)

        if rest == 0:
            return fits(problem.layers)
        high = _last_within(fits, low + 1, problem.layers - rest)
        if high is None:
            return False
        low = high
    return False


def _most_blocks(problem: Problem) -> int:
    """Most blocks over all partitions, one budget per stage; negative when none fits."""
    layers, stages = problem.layers, len(problem.devices)
    known = _last_true(lambda blocks: _greedy(problem, blocks), 0)
    bound = 0 if known is None else known  # partitions below it need no look
    best = [-1] * (layers + 1)
    best[0] = UNBOUNDED
    for stage in range(stages):
        budget = problem.budgets[problem.devices[stage]]
        after = [-1] * (layers + 1)
        for low in range(stage, layers):
            before = best[low]
            if before < bound:
                continue
            for high in problem.highs(stage, low):
                if after[high] >= before:
                    continue
                need = problem.need(stage, low, high)
                if need is None:
                    continue
                here = blocks_alone(budget, need)
                if here < bound:
                    break  # a longer stage holds fewer still
                after[high] = max(after[high], min(before, here))
        best = after
    return best[layers]


Choice = tuple[int, int, tuple[int, ...]]  # cost, misaligned cuts, negated counts


def cheapest(problem: Problem, blocks: int) -> tuple[int, ...] | None:
    """The least costly partition whose stages all hold ``blocks``, or None."""
    if problem.sharing:
        return Suffixes(problem, blocks).find()
    return _cheapest(problem, blocks)


def _cheapest(problem: Problem, blocks: int) -> tuple[int, ...] | None:
    """As cheapest(), one budget per stage."""
    layers, stages = problem.layers, len(problem.devices)
    best: list[Choice | None] = [None] * (layers + 1)
    best[0] = (0, 0, ())
    for stage in range(stages):
        budget = problem.budgets[problem.devices[stage]]
        after: list[Choice | None] = [None] * (layers + 1)
        for low in range(stage, layers):
            before = best[low]
            if before is None:
                continue
            for high in problem.highs(stage, low):
                need = problem.need(stage, low, high)
                if need is None:
                    continue
                if need.fixed + blocks * need.per_block > budget or blocks > need.limit:
                    break
                choice = (
                    before[0] + need.cost,
                    before[1] + problem.crooked(high),
                    (*before[2], low - high),
                )
                old = after[high]
                if old is None or choice < old:
                    after[high] = choice
        best = after
    end = best[layers]
    return None if end is None else tuple(-count for count in end[2])
