"""Inputs of one microbatch: tensors made and bound once, filled for every step.

A tensor keeps its memory while its shape changes below what it was made for, and the infer
requests it is bound to see the new shape. All stages of a microbatch read the same tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import openvino as ov

from .batch import StepBatch
from .names import BLOCK_BEGINS, BLOCKS, STEP_FIELDS


@dataclass(frozen=True)
class InputSpec:
    """dtype: OpenVINO's. rows: of a matrix whose rows are alike (``position_ids`` of VLMs), 0 for a
    vector, -1 for a scalar."""

    dtype: Any
    rows: int


class _Bound:
    """One input. capacity: entries it is made for; more are allocated once, where they come."""

    def __init__(self, spec: InputSpec, capacity: int) -> None:
        self._rows, self._scalar = max(1, spec.rows), spec.rows < 0
        self._leading = [spec.rows] if spec.rows > 0 else []
        shape = [] if self._scalar else [*self._leading, capacity]
        self.tensor = ov.Tensor(spec.dtype, ov.Shape(shape))
        self._flat, self._length = self.tensor.data.reshape(-1), -1

    def put(self, values: Any) -> None:
        if self._scalar:
            self._flat[0] = values
            return
        length, total = len(values), len(values) * self._rows
        if length != self._length:
            self.tensor.shape = [*self._leading, length]
            self._length = length
            if total > self._flat.size:
                self._flat = self.tensor.data.reshape(-1)
        if self._rows == 1:
            self._flat[:total] = values
        else:
            self._flat[:total].reshape(self._rows, length)[:] = values


class StepInputs:
    """Inputs by name, and a second pair of block lists for stages with smaller blocks.

    specs: of every input that some stage takes from the step. factors: blocks of a stage that
    make one of the chain's, for all stages.
    """

    def __init__(
        self, specs: Mapping[str, InputSpec], factors: set[int], *, tokens: int, sequences: int
    ) -> None:
        room = {"input_ids": tokens, "position_ids": tokens, "cache_position": tokens}
        self._bound = {
            name: _Bound(spec, room.get(name, 2 * sequences + 1))
            for name, spec in specs.items()
            if name not in (BLOCKS, BLOCK_BEGINS)
        }
        self._fill = [(STEP_FIELDS[name], bound) for name, bound in self._bound.items()]
        self._split = {
            factor: (
                _Bound(specs[BLOCKS], 64 * sequences),
                _Bound(specs[BLOCK_BEGINS], sequences + 1),
            )
            for factor in factors
            if BLOCKS in specs
        }

    def tensor(self, name: str, factor: int) -> Any:
        """What a stage with ``factor`` binds its input ``name`` to."""
        if name in (BLOCKS, BLOCK_BEGINS):
            return self._split[factor][name == BLOCK_BEGINS].tensor
        return self._bound[name].tensor

    def fill(self, batch: StepBatch) -> None:
        """Copy ``batch`` in. No stage may be running on these inputs."""
        for field, bound in self._fill:
            values = getattr(batch, field)
            if values is None:
                values = batch.past_lens
            bound.put(values)
        for factor, (blocks, begins) in self._split.items():
            blocks.put(smaller_blocks(batch.block_indices, factor))
            begins.put(batch.block_indices_begins * factor)


def smaller_blocks(blocks: Any, factor: int) -> Any:
    """Blocks of a device with ``factor`` times smaller ones, in the order of their tokens."""
    if factor == 1:
        return blocks
    return (blocks[:, None] * factor + np.arange(factor, dtype=blocks.dtype)).reshape(-1)
