"""The best partition, exactly: dynamic programming over cuts.

A stage over layers [low, high) needs ``fixed`` bytes and ``per_block`` bytes for every block of
cache. The solver finds the most blocks that some partition allows, then, among all partitions
that allow as many, the one with the least cost (decode time), then the fewest misaligned cuts,
then the most layers on the earliest devices. Stages on one device share its budget.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .memory.layout import UNBOUNDED


@dataclass(frozen=True)
class Need:
    """What a stage takes. cost: its share of the decode time, in any integer unit. limit: most
    blocks it can hold whatever the budget."""

    fixed: int
    per_block: int
    cost: int = 0
    limit: int = UNBOUNDED


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
    limit = min(need.limit for need in needs)
    return min(left // per_block, limit) if per_block else limit


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
    if not _shares(problem):
        most = _most_blocks(problem)
        return None if most < least_blocks else cheapest(problem, most)
    found = _last_true(
        lambda blocks: _cheapest_shared(problem, blocks, feasible_only=True) is not None,
        max(0, least_blocks),
    )
    return None if found is None else cheapest(problem, found)


def solve_cheapest(problem: Problem, enough: int) -> tuple[int, ...] | None:
    """The least costly partition with ``enough`` blocks; of those, one with the most blocks."""
    first = cheapest(problem, enough)
    if first is None:
        return None
    least = cost_of(problem, first)

    def as_cheap(blocks: int) -> bool:
        found = cheapest(problem, blocks)
        return found is not None and cost_of(problem, found) == least

    most = _last_true(as_cheap, enough)
    assert most is not None
    return cheapest(problem, most)


def cost_of(problem: Problem, counts: Sequence[int]) -> int:
    """Sum of the stages' costs."""
    cost = low = 0
    for stage, count in enumerate(counts):
        need = problem.need(stage, low, low + count)
        cost += 0 if need is None else need.cost
        low += count
    return cost


def _shares(problem: Problem) -> bool:
    return len(set(problem.devices)) < len(problem.devices)


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
            return need is not None and blocks <= blocks_within(room, [need])

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
            last = stage == stages - 1
            for high in range(layers if last else low + 1, layers - (stages - stage - 1) + 1):
                if after[high] >= before:
                    continue
                need = problem.need(stage, low, high)
                if need is None:
                    continue
                here = blocks_within(budget, [need])
                if here < bound:
                    break  # a longer stage holds fewer still
                after[high] = max(after[high], min(before, here))
        best = after
    return best[layers]


Choice = tuple[int, int, tuple[int, ...]]  # cost, misaligned cuts, negated counts


def cheapest(problem: Problem, blocks: int) -> tuple[int, ...] | None:
    """The least costly partition whose stages all hold ``blocks``, or None."""
    return _cheapest_shared(problem, blocks) if _shares(problem) else _cheapest(problem, blocks)


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
            last = stage == stages - 1
            for high in range(layers if last else low + 1, layers - (stages - stage - 1) + 1):
                need = problem.need(stage, low, high)
                if need is None:
                    continue
                if need.fixed + blocks * need.per_block > budget or blocks > need.limit:
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
    """A partial partition: bytes used of the budgets that later stages still draw on, and what
    it has cost so far (nothing when only feasibility is asked for)."""

    used: tuple[int, ...]
    choice: Choice


_FREE: Choice = (0, 0, ())


def _cheapest_shared(
    problem: Problem, blocks: int, *, feasible_only: bool = False
) -> tuple[int, ...] | None:
    """The least costly partition that holds ``blocks``, keeping all undominated labels.

    feasible_only: return any truth value of whether there is one, () standing for yes.
    """
    layers, stages = problem.layers, len(problem.devices)
    best: list[list[_Label]] = [[] for _ in range(layers + 1)]
    best[0] = [_Label((0,) * len(problem.budgets), _FREE)]
    for stage in range(stages):
        device, last = problem.devices[stage], stage == stages - 1
        again = device in problem.devices[stage + 1 :]
        after: list[list[_Label]] = [[] for _ in range(layers + 1)]
        for low in range(stage, layers):
            for high in range(layers if last else low + 1, layers - (stages - stage - 1) + 1):
                need = problem.need(stage, low, high) if best[low] else None
                if need is None or blocks > need.limit:
                    continue
                crooked = 0 if last or high % problem.period == 0 else 1
                added = need.fixed + blocks * need.per_block
                for label in best[low]:
                    used = label.used[device] + added
                    if used > problem.budgets[device]:
                        continue
                    kept = used if again else 0
                    amounts = (*label.used[:device], kept, *label.used[device + 1 :])
                    choice = _FREE
                    if not feasible_only:
                        cost, cuts, counts = label.choice
                        choice = (cost + need.cost, cuts + crooked, (*counts, low - high))
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
