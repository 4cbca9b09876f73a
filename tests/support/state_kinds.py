"""Every kind of state tables that the suite runs against."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from arcpp.link.frame import TensorSpec
from arcpp.state import StateTables
from arcpp.testing import NullTables

#: Where torch's tables lie.
DEVICE = os.environ.get("STATE_TEST_DEVICE", "cpu")


@dataclass(frozen=True)
class Kind:
    """A kind of tables. make: of arrays and a number of places. needs: the package it is for."""

    name: str
    make: Callable[[Sequence[TensorSpec], int], StateTables]
    needs: str | None = None

    @property
    def missing(self) -> bool:
        """Whether its runtime is not installed."""
        return self.needs is not None and importlib.util.find_spec(self.needs) is None

    def __str__(self) -> str:
        return self.name


def _torch(arrays: Sequence[TensorSpec], places: int) -> StateTables:
    from arcpp.backends.torch_state import TorchTables

    return TorchTables.allocate(arrays, places, DEVICE)


def _strided(arrays: Sequence[TensorSpec], places: int) -> StateTables:
    """Arrays as a host has them: places within pages of one pool, a window transposed."""
    import torch

    from arcpp.backends.torch_state import TorchTables

    page = 64 + sum(array.nbytes for array in arrays) * 2
    pool = torch.empty(places, page, dtype=torch.uint8, device=DEVICE)
    tensors, at = {}, 0
    for array in arrays:
        part = pool[:, at : at + array.nbytes].view(getattr(torch, array.dtype))
        tensors[array.name] = part.view(places, *reversed(array.shape)).permute(
            0, *range(len(array.shape), 0, -1)
        )
        at += -(-array.nbytes // 16) * 16
    return TorchTables(tensors)


def _openvino(arrays: Sequence[TensorSpec], places: int) -> StateTables:
    from arcpp.backends.openvino_state import OpenVinoTables

    return OpenVinoTables.allocate(arrays, places)


def _chain(arrays: Sequence[TensorSpec], places: int) -> StateTables:
    """As two stages have them, an array each where there are several."""
    from arcpp.backends.openvino_state import OpenVinoTables
    from arcpp_openvino.tables import ChainStates

    parts = [part for part in (arrays[:1], arrays[1:]) if part]
    return ChainStates([OpenVinoTables.allocate(part, places) for part in parts])


NULL = Kind("null", NullTables)
TORCH = Kind(f"torch, {DEVICE}", _torch, "torch")
KINDS = (
    NULL,
    TORCH,
    Kind(f"torch, {DEVICE}, within pages", _strided, "torch"),
    Kind("openvino", _openvino, "openvino"),
    Kind("openvino, two stages", _chain, "openvino"),
)
