"""The search where stages share devices: labels over suffixes of the pipeline.

A label says what the stages from some stage and layer on take of the devices that earlier stages
use too, and what they cost. Of the labels of one place only those are kept that no other beats,
so the answer is exact; stages of a device that follow one another need few labels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby

from .errors import BadInput
from .problem import Problem

#: Comparisons of labels after which one search is refused: about a second; a plan takes some ten.
_MOST_WORK = 300_000


@dataclass(frozen=True, slots=True)
class _Label:
    """used: bytes per device index, of devices that earlier stages use too. cost: decode time
    and misaligned cuts, in this order. slowest: of the stages that share a device."""

    used: tuple[int, ...]
    cost: tuple[int, int]
    slowest: int

    def without(self, device: int) -> _Label:
        """This label once no stage is left that could use ``device``."""
        return replace(self, used=(*self.used[:device], 0, *self.used[device + 1 :]))

    def beats(self, other: _Label) -> bool:
        """Whether whatever can be done with ``other`` can be done with this, as well or better."""
        if self.cost > other.cost:
            return False
        if self.cost == other.cost and self.slowest > other.slowest:
            return False
        return all(mine <= its for mine, its in zip(self.used, other.used, strict=True))


class Suffixes:
    """All ways to end a pipeline whose every stage holds ``blocks``.

    feasible_only: costs are left out; find() then gives any partition. Raises BadInput where
    stages take turns on devices in more ways than can be kept.
    """

    def __init__(self, problem: Problem, blocks: int, *, feasible_only: bool = False) -> None:
        self._problem, self._blocks, self._plain = problem, blocks, feasible_only
        self._shared = problem.sharing
        order = [device for device, _ in groupby(problem.devices)]
        self._turns = len(set(order)) < len(order)  # a device is come back to
        self._work = 0
        nothing = _Label((0,) * len(problem.budgets), (0, 0), 0)
        # Per stage, then per layer it may begin at. The end is a stage of its own.
        self._labels: list[dict[int, list[_Label]]] = [{problem.layers: [nothing]}]
        for stage in reversed(range(len(problem.devices))):
            self._labels.insert(0, self._stage(stage))

    def _stage(self, stage: int) -> dict[int, list[_Label]]:
        problem, later = self._problem, self._labels[0]
        device = problem.devices[stage]
        again = device in problem.devices[:stage]
        lows = range(stage, problem.layers) if stage else (0,)
        found: dict[int, list[_Label]] = {}
        for low in lows:
            labels: list[_Label] = []
            for high in problem.highs(stage, low):
                ways = later.get(high)
                if not ways:
                    continue
                for label in ways:
                    longer = self._with(stage, low, high, label)
                    if longer is not None:
                        self._worked(1 + len(labels))
                        _keep(labels, longer if again else longer.without(device))
            if labels:
                found[low] = labels
        return found

    def _worked(self, comparisons: int) -> None:
        self._work += comparisons
        if self._turns and self._work > _MOST_WORK:
            right = (
                "stages take turns on devices in too many ways to compare: name the stages of a "
                "device one after the other, or give the partition"
            )
            raise BadInput("devices", len(self._problem.devices), right)

    def _with(self, stage: int, low: int, high: int, label: _Label) -> _Label | None:
        """``label`` and ``stage`` over [low, high) together; None where that does not fit."""
        problem = self._problem
        device, need = problem.devices[stage], problem.need(stage, low, high)
        if need is None or self._blocks > need.limit:
            return None
        used = label.used[device] + need.fixed + self._blocks * need.per_block
        if used > problem.budgets[device]:
            return None
        amounts = (*label.used[:device], used, *label.used[device + 1 :])
        if self._plain:
            return _Label(amounts, (0, 0), 0)
        cost = label.cost[0] + need.cost, label.cost[1] + problem.crooked(high)
        slowest = max(label.slowest, need.cost) if stage in self._shared else label.slowest
        return _Label(amounts, cost, slowest)

    def find(self) -> tuple[int, ...] | None:
        """Layers per stage of the best partition, or None when none fits.

        Where costs are left out: a partition that takes little of the devices.
        """
        ends = self._labels[0].get(0)
        if not ends:
            return None
        best = min(ends, key=lambda label: (label.cost, label.slowest))
        counts: list[int] = []
        low, before = 0, _Label((0,) * len(self._problem.budgets), (0, 0), 0)
        for stage in range(len(self._problem.devices)):
            ways = self._ways(stage, low, before, best)
            if self._plain:
                high, before, _ = min(ways, key=lambda way: way[2])
            else:
                high, before, _ = next(ways)
            counts.append(high - low)
            low = high
        return tuple(counts)

    def _ways(
        self, stage: int, low: int, before: _Label, best: _Label
    ) -> Iterator[tuple[int, _Label, int]]:
        """Ways on from ``before`` that can end as good as ``best``, the longest stage first.

        Each is where the stage ends, what has been used by then, and the bytes used in the end.
        """
        budgets = self._problem.budgets
        for high in reversed(self._problem.highs(stage, low)):
            after = self._with(stage, low, high, before)
            if after is None:
                continue
            for rest in self._labels[stage + 1].get(high, ()):
                cost = after.cost[0] + rest.cost[0], after.cost[1] + rest.cost[1]
                if cost > best.cost or max(after.slowest, rest.slowest) > best.slowest:
                    continue
                used = [a + b for a, b in zip(after.used, rest.used, strict=True)]
                if all(a <= b for a, b in zip(used, budgets, strict=True)):
                    yield high, after, sum(used)


def _keep(labels: list[_Label], new: _Label) -> None:
    """Add ``new`` unless one of ``labels`` beats it; drop those it beats."""
    for old in labels:
        if old.beats(new):
            return
    labels[:] = [old for old in labels if not new.beats(old)]
    labels.append(new)
