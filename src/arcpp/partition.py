"""Partition: whole layers over ordered stages, each layer exactly once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from .errors import BadInput

_COUNTS = re.compile(r"\d{1,5}(,\d{1,5})*", re.ASCII)


@dataclass(frozen=True)
class Stage:
    """Contiguous layers [low, high) on one device. index: 0 is the first stage."""

    index: int
    low: int
    high: int

    @property
    def layers(self) -> int:
        """Number of layers."""
        return self.high - self.low


@dataclass(frozen=True)
class Partition:
    """Layers per stage, in stage order. Every stage has at least one."""

    counts: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.counts or any(count < 1 for count in self.counts):
            raise BadInput("partition", str(self), "leaves a stage without layers")

    def __str__(self) -> str:
        return ",".join(str(count) for count in self.counts)

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages with their layer ranges."""
        ends = list(accumulate(self.counts))
        return tuple(
            Stage(index, end - count, end)
            for index, (count, end) in enumerate(zip(self.counts, ends, strict=True))
        )

    def misaligned(self, period: int) -> int:
        """Cuts that do not lie on a multiple of ``period`` layers."""
        return sum(1 for cut in list(accumulate(self.counts))[:-1] if cut % period)


def parse_partition(text: str, what: str = "--partition") -> Partition:
    """Partition written as ``60,4``. Raises BadInput, with ``what`` as the option's name."""
    if not _COUNTS.fullmatch(text.strip()):
        raise BadInput(what, text, "is not layers per stage, such as 60,4")
    counts = tuple(int(count) for count in text.strip().split(","))
    if 0 in counts:
        raise BadInput(what, text, "leaves a stage without layers")
    return Partition(counts)


def check_partition(
    partition: Partition, layers: int, stages: int, what: str = "--partition"
) -> None:
    """Refuse a partition that is not for this model and number of stages (BadInput)."""
    if len(partition.counts) != stages:
        parts = len(partition.counts)
        right = f"is for {parts} stage{'' if parts == 1 else 's'}, not for {stages}"
        raise BadInput(what, str(partition), right)
    if sum(partition.counts) != layers:
        right = f"adds up to {sum(partition.counts)} layers, but the model has {layers}"
        raise BadInput(what, str(partition), right)


def even_split(layers: int, stages: int) -> Partition:
    """vLLM's own default: equal shares, what is left over to the middle stages from the end.

    Follows get_pp_indices in vllm/distributed/utils.py.
    """
    counts = [layers // stages] * stages
    for i in range(2, layers % stages + 2):
        counts[-i] += 1
    return Partition(tuple(counts))


def proportional_split(layers: int, shares: Sequence[int]) -> Partition:
    """Layers in proportion to ``shares`` (bytes of memory, say), at least one each."""
    counts = [1] * len(shares)
    for _ in range(layers - len(shares)):
        short = [shares[i] * layers - counts[i] * sum(shares) for i in range(len(shares))]
        counts[short.index(max(short))] += 1
    return Partition(tuple(counts))
