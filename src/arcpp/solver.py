"""The best partition, exactly: dynamic programming over cuts.

A stage over layers [low, high) needs ``fixed`` bytes and ``per_block`` bytes for every block of
cache. The solver finds the most blocks that some partition allows, then, among all partitions
that allow as many, the one with the least cost (decode time), then the fewest misaligned cuts,
then the most layers on the earliest devices. Stages on one device share its budget.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

#: Blocks of a stage that keeps no cache.
UNBOUNDED = 2**62


@dataclass(frozen=True)
class Need:
    """What a stage takes. cost: its share of the decode time, in any integer unit."""

    fixed: int
    per_block: int
    cost: int = 0


@dataclass(frozen=True)
class Problem:
    """One search. devices: per stage, the index of its budget. need(stage, low, high) is None
    where such a stage cannot be. period: cuts on its multiples win ties."""

    layers: int
    devices: tuple[int, ...]
    budgets: tuple[int, ...]
    need: Callable[[int, int, int], Need | None]
    period: int = 1


def blocks_within(budget: int, needs: Sequence[Need]) -> int:
    """Blocks that fit ``budget`` for all ``needs`` on one device; negative when none of it fits."""
    left = budget - sum(need.fixed for need in needs)
    if left < 0:
        return -1
    per_block = sum(need.per_block for need in needs)
    return left // per_block if per_block else UNBOUNDED


def blocks_of(problem: Problem, counts: Sequence[int]) -> int:
    """Blocks that every stage of a partition can hold; negative when it does not fit."""
    by_device: dict[int, list[Need]] = {}
    low = 0
    for stage, count in enumerate(counts):
        need = problem.need(stage, low, low + count)
        if need is None:
            return -1
        by_device.setdefault(problem.devices[stage], []).append(need)
        low += count
    return min(blocks_within(problem.budgets[d], needs) for d, needs in by_device.items())


def solve(problem: Problem, least_blocks: int = 0) -> tuple[int, ...] | None:
    """Layers per stage of the best partition with at least ``least_blocks``, or None."""
    if len(problem.devices) > problem.layers:
        return None
    if len(set(problem.devices)) == len(problem.devices):
        most = _most_blocks(problem)
        if most < least_blocks:
            return None
        return cheapest(problem, most)
    return _solve_shared(problem, least_blocks)


def _most_blocks(problem: Problem) -> int:
    """Most blocks over all partitions, one budget per stage; negative when none fits."""
    layers, stages = problem.layers, len(problem.devices)
    best = [-1] * (layers + 1)
    best[0] = UNBOUNDED
    for stage in range(stages):
        budget = problem.budgets[problem.devices[stage]]
        after = [-1] * (layers + 1)
        for low in range(stage, layers):
            before = best[low]
            if before < 0:
                continue
            last = stage == stages - 1
            for high in range(layers if last else low + 1, layers - (stages - stage - 1) + 1):
                if after[high] >= before:
                    continue
                need = problem.need(stage, low, high)
                if need is None:
                    continue
                here = blocks_within(budget, [need])
                if here < 0:
                    break  # a longer stage needs more still
                after[high] = max(after[high], min(before, here))
        best = after
    return best[layers]


Choice = tuple[int, int, tuple[int, ...]]  # cost, misaligned cuts, negated counts


def cheapest(problem: Problem, blocks: int) -> tuple[int, ...] | None:
    """The least costly partition whose stages all hold ``blocks``, one budget per stage."""
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
            last = stage == stages - 1
            for high in range(layers if last else low + 1, layers - (stages - stage - 1) + 1):
                need = problem.need(stage, low, high)
                if need is None:
                    continue
                if need.fixed + blocks * need.per_block > budget:
                    break
                crooked = 0 if last or high % problem.period == 0 else 1
                choice = (
                    before[0] + need.cost,
                    before[1] + crooked,
                    (*before[2], low - high),
                )
                old = after[high]
                if old is None or choice < old:
                    after[high] = choice
        best = after
    end = best[layers]
    return None if end is None else tuple(-count for count in end[2])


@dataclass(frozen=True)
class _Label:
    """A partial partition: bytes used per budget and what it has cost so far."""

    used: tuple[int, ...]
    choice: Choice


def _solve_shared(problem: Problem, least_blocks: int) -> tuple[int, ...] | None:
    """As solve(), where stages share budgets: search on the number of blocks."""
    if _cheapest_shared(problem, max(0, least_blocks)) is None:
        return None
    low, high = max(0, least_blocks), 1
    while _cheapest_shared(problem, low + high) is not None:
        high *= 2
        if high > UNBOUNDED:
            break
    high += low
    while high - low > 1:
        middle = (low + high) // 2
        if _cheapest_shared(problem, middle) is None:
            high = middle
        else:
            low = middle
    return _cheapest_shared(problem, low)


def _cheapest_shared(problem: Problem, blocks: int) -> tuple[int, ...] | None:
    """The least costly partition that holds ``blocks``, keeping all undominated labels."""
    layers, stages = problem.layers, len(problem.devices)
    best: list[list[_Label]] = [[] for _ in range(layers + 1)]
    best[0] = [_Label((0,) * len(problem.budgets), (0, 0, ()))]
    for stage in range(stages):
        device = problem.devices[stage]
        after: list[list[_Label]] = [[] for _ in range(layers + 1)]
        last = stage == stages - 1
        for low in range(stage, layers):
            for high in range(layers if last else low + 1, layers - (stages - stage - 1) + 1):
                need = problem.need(stage, low, high) if best[low] else None
                if need is None:
                    continue
                crooked = 0 if last or high % problem.period == 0 else 1
                for label in best[low]:
                    used = label.used[device] + need.fixed + blocks * need.per_block
                    if used > problem.budgets[device]:
                        continue
                    cost, cuts, counts = label.choice
                    choice = (cost + need.cost, cuts + crooked, (*counts, low - high))
                    amounts = (*label.used[:device], used, *label.used[device + 1 :])
                    _keep(after[high], _Label(amounts, choice))
        best = after
    ends = best[layers]
    if not ends:
        return None
    return tuple(-count for count in min(label.choice for label in ends)[2])


def _keep(labels: list[_Label], new: _Label) -> None:
    """Add ``new`` unless a label is at least as good in everything; drop those it beats."""

    def beats(a: _Label, b: _Label) -> bool:
        return a.choice <= b.choice and all(x <= y for x, y in zip(a.used, b.used, strict=True))

    if any(beats(old, new) for old in labels):
        return
    labels[:] = [old for old in labels if not beats(new, old)]
    labels.append(new)
