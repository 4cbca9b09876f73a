"""State tables of OpenVINO: host tensors, or remote tensors of one GPU's context.

The paged form of a model takes one such table per kind of state and layer (``conv_state_table.N``,
``gated_delta_state_table.N``), with the place as first dimension, and for each sequence a list of
places [read, write...]: what a Window says. Host tensors were run; remote ones use the same calls
and were not, for want of an Intel GPU.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import openvino as ov  # type: ignore[import-not-found, unused-ignore]

from arcpp.link.frame import TensorSpec
from arcpp.state import StateTables

#: As the core names dtypes -> as OpenVINO does.
_TYPES = {
    "bfloat16": ov.Type.bf16,
    "float16": ov.Type.f16,
    "float32": ov.Type.f32,
    "float64": ov.Type.f64,
}


class OpenVinoTables(StateTables):
    """Tables over tensors that exist, each [places, ...], of one context each.

    ``allocate`` makes host tensors. Every place of every tensor is a region made here once, so
    that nothing is allocated later. Calls are done when they return. OpenVINO has no stream that
    orders them: wait for the inferences that use those places first.

    A region is never copied from or to a tensor of HETERO, whose copies read past their source's
    end on every device but the first (2026.4).

    device: its name. Raises ValueError for tensors that cannot be tables together.
    """

    def __init__(self, tensors: Mapping[str, Any], device: str = "CPU") -> None:
        self.tensors, self.device = dict(tensors), device
        shapes = {name: tuple(tensor.get_shape()) for name, tensor in self.tensors.items()}
        if not shapes or () in shapes.values() or len({shape[0] for shape in shapes.values()}) > 1:
            raise ValueError(f"tensors {shapes} do not have the same places")
        self.places = next(iter(shapes.values()))[0]
        self.arrays = tuple(_spec(name, self.tensors[name], shapes[name]) for name in shapes)
        # One place of each array in host memory: zeros, and what is read or written.
        self._zeros = [_host(array) for array in self.arrays]
        self._room = [_host(array) for array in self.arrays]
        for zeros in self._zeros:
            zeros.data[...] = 0
        self._regions = [
            [_region(tensor, place) for tensor in self.tensors.values()]
            for place in range(self.places)
        ]

    @staticmethod
    def allocate(arrays: Sequence[TensorSpec], places: int) -> OpenVinoTables:
        """Tables in host memory, for the CPU plugin."""
        return OpenVinoTables(
            {
                array.name: ov.Tensor(_TYPES[array.dtype], ov.Shape([places, *array.shape]))
                for array in arrays
            }
        )

    def zero(self, places: Sequence[int]) -> None:
        """As in the port."""
        self.check(places)
        for place in places:
            for region, zeros in zip(self._regions[place], self._zeros, strict=True):
                region.copy_from(zeros)

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """As in the port."""
        self.check([place for pair in pairs for place in pair])
        for source, target in pairs:
            if source == target:
                continue
            for to, whence in zip(self._regions[target], self._regions[source], strict=True):
                to.copy_from(whence)

    def are_zero(self, places: Sequence[int]) -> bool:
        """As in the port."""
        return not any(any(self.read(place)) for place in places)

    def read(self, place: int) -> bytes:
        """As in the port."""
        self.check([place])
        for region, room in zip(self._regions[place], self._room, strict=True):
            region.copy_to(room)
        return b"".join(bytes(room.data.tobytes()) for room in self._room)

    def write(self, place: int, raw: bytes) -> None:
        """As in the port."""
        self.check([place])
        parts = self.split(raw)
        for region, room, part in zip(self._regions[place], self._room, parts, strict=True):
            memoryview(room.data).cast("B")[:] = part
            region.copy_from(room)


def _host(array: TensorSpec) -> Any:
    return ov.Tensor(_TYPES[array.dtype], ov.Shape([1, *array.shape]))


def _region(tensor: Any, place: int) -> Any:
    """One place of a host or remote tensor, which shares its memory."""
    rest = list(tensor.get_shape())[1:]
    begin = ov.Coordinate([place, *(0 for _ in rest)])
    return type(tensor)(tensor, begin, ov.Coordinate([place + 1, *rest]))


def _spec(name: str, tensor: Any, shape: tuple[int, ...]) -> TensorSpec:
    found = [dtype for dtype, kind in _TYPES.items() if tensor.get_element_type() == kind]
    if not found or not math.prod(shape):
        raise ValueError(f"{name!r} ({tensor.get_element_type()}, {shape}) is no table of states")
    return TensorSpec(name, found[0], shape[1:])
