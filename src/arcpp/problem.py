"""What a search for the best partition is about: needs of stages, budgets, and what is best.

A stage over layers [low, high) needs ``fixed`` bytes and ``per_block`` bytes for every block of
cache. The best partition allows the most blocks; of those that allow as many it has the least
cost (decode time), then the fewest misaligned cuts, then, where stages share a device, the
smallest slowest of them, then the most layers on the earliest stages.
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

    @property
    def sharing(self) -> frozenset[int]:
        """Stages that share their device with another stage."""
        return frozenset(
            stage for stage, device in enumerate(self.devices) if self.devices.count(device) > 1
        )

    def highs(self, stage: int, low: int) -> range:
        """Where ``stage`` may end when it begins at ``low``: every stage gets a layer."""
        later = len(self.devices) - stage - 1
        return range(low + 1 if later else self.layers, self.layers - later + 1)

    def crooked(self, high: int) -> int:
        """1 where a cut before layer ``high`` is misaligned, else 0."""
        return 1 if high < self.layers and high % self.period else 0


def blocks_within(budget: int, needs: Sequence[Need]) -> int:
    """Blocks that fit ``budget`` for all ``needs`` on one device; negative when none of it fits."""
    left = budget - sum(need.fixed for need in needs)
    if left < 0:
        return -1
    per_block = sum(need.per_block for need in needs)
    limit = min(need.limit for need in needs)
    return min(left // per_block, limit) if per_block else limit


def blocks_alone(budget: int, need: Need) -> int:
    """As blocks_within() for one need: what the search asks most often."""
    left = budget - need.fixed
    if left < 0:
        return -1
    return min(left // need.per_block, need.limit) if need.per_block else need.limit


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


def cost_of(problem: Problem, counts: Sequence[int]) -> int:
    """Sum of the stages' costs."""
    return sum(_costs(problem, counts))


def slowest_of(problem: Problem, counts: Sequence[int]) -> int:
    """Cost of the slowest stage among those that share a device; 0 when none does.

    Stages of one device take turns, so that one token takes as long whatever their sizes;
    equal ones keep most requests in flight.
    """
    costs = _costs(problem, counts)
    return max((costs[stage] for stage in problem.sharing), default=0)


def _costs(problem: Problem, counts: Sequence[int]) -> list[int]:
    costs, low = [], 0
    for stage, count in enumerate(counts):
        need = problem.need(stage, low, low + count)
        costs.append(0 if need is None else need.cost)
        low += count
    return costs
