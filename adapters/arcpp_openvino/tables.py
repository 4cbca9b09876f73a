"""KV tables and state tables of a stage: allocated once, bound to all its infer requests."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import openvino as ov

from arcpp.backends.openvino_state import OpenVinoTables
from arcpp.state import StateTables

from .names import KV_TABLES


def table_shapes(
    ports: Mapping[str, Any], kv_blocks: int, state_blocks: int
) -> dict[str, tuple[Any, list[int]]]:
    """Element type and shape of each table, by its input's name, as the stage was compiled."""
    found = {}
    for name, port in ports.items():
        count = kv_blocks if name.startswith(KV_TABLES) else state_blocks
        rest = [port.get_partial_shape()[i].get_length() for i in range(1, _rank(port))]
        found[name] = port.get_element_type(), [count, *rest]
    return found


def table_bytes(shapes: Mapping[str, tuple[Any, list[int]]]) -> int:
    """Bytes of all tables together."""
    return sum(-(-math.prod(shape) * kind.bitwidth // 8) for kind, shape in shapes.values())


def _rank(port: Any) -> int:
    return int(port.get_partial_shape().rank.get_length())


def allocate(core: Any, device: str, shapes: Mapping[str, tuple[Any, list[int]]]) -> dict[str, Any]:
    """The tables: host tensors of zeros on a processor, remote tensors of a GPU's own context.

    A processor's pages are touched here, so that nothing grows later. Raises what OpenVINO does.
    """
    if device.partition(".")[0] == "CPU":
        tables = {name: ov.Tensor(kind, ov.Shape(shape)) for name, (kind, shape) in shapes.items()}
        for table in tables.values():
            table.data[...] = 0
        return tables
    context = core.get_default_context(device)
    return {
        name: context.create_tensor(kind, ov.Shape(shape), {})
        for name, (kind, shape) in shapes.items()
    }


class ChainStates(StateTables):
    """State tables of all stages as one: a place is the same number on every stage."""

    def __init__(self, parts: Sequence[OpenVinoTables]) -> None:
        self._parts = tuple(parts)
        self.device = ", ".join(dict.fromkeys(part.device for part in parts))
        self.places = parts[0].places
        self.arrays = tuple(array for part in parts for array in part.arrays)

    def zero(self, places: Sequence[int]) -> None:
        """As in the port."""
        for part in self._parts:
            part.zero(places)

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """As in the port."""
        for part in self._parts:
            part.copy(pairs)

    def are_zero(self, places: Sequence[int]) -> bool:
        """As in the port."""
        return all(part.are_zero(places) for part in self._parts)

    def read(self, place: int) -> bytes:
        """As in the port."""
        return b"".join(part.read(place) for part in self._parts)

    def write(self, place: int, raw: bytes) -> None:
        """As in the port."""
        if len(raw) != self.place_bytes:
            raise ValueError(f"{len(raw)} bytes for a place of {self.place_bytes}")
        at = 0
        for part in self._parts:
            part.write(place, raw[at : at + part.place_bytes])
            at += part.place_bytes
