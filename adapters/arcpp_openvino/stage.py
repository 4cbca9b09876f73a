"""One stage: its layers compiled for one device, its tables, an infer request per microbatch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from arcpp.backends.openvino_state import OpenVinoTables

from .cut import Piece
from .errors import StageFailed, stage_failed
from .inputs import InputSpec
from .names import HIDDEN, KV_TABLES, SHAPE, STATE_TABLES, TABLES, known_name
from .options import ChainOptions
from .tables import allocate, table_shapes

_CROSSES = (HIDDEN, SHAPE)


class CompiledStage:
    """Layers [low, high) on ``device``.

    index: 0 is the first stage. block_tokens: tokens of a KV block of this device; None without
    attention layers. state: its state tables, None without linear-attention layers. requests: one
    per microbatch.

    Raises StageFailed (compile).
    """

    def __init__(self, core: Any, piece: Piece, device: str, options: ChainOptions) -> None:
        self.index, self.low, self.high = piece.stage.index, piece.stage.low, piece.stage.high
        self.device, self.piece = device, piece
        self._core, self._options = core, options
        self.tables: dict[str, Any] = {}
        self.state: OpenVinoTables | None = None
        self.requests: list[Any] = []
        self.compile()

    def compile(self) -> None:
        """Compile (again). Tables and requests of before are let go first."""
        self.tables, self.state, self.requests = {}, None, []
        self.compiled: Any = None
        try:
            config = self._options.config(self.device)
            self.compiled = self._core.compile_model(self.piece.model, self.device, config)
        except RuntimeError as error:
            raise self.failed(error, "compile") from error
        self.inputs = {known_name(port): port for port in self.compiled.inputs}
        self.outputs = {known_name(port): port for port in self.compiled.outputs}

    @property
    def block_tokens(self) -> int | None:
        """Tokens of a KV block, as compiled."""
        for name, port in self.inputs.items():
            if name.startswith("value_cache."):
                return int(port.get_partial_shape()[2].get_length())
        return None

    def step_inputs(self) -> dict[str, InputSpec]:
        """Inputs that come from the step: neither tables nor from other stages."""
        return {
            name: _spec(port)
            for name, port in self.inputs.items()
            if not name.startswith((*TABLES, *_CROSSES))
        }

    def shapes(self, kv_blocks: int, state_blocks: int) -> dict[str, tuple[Any, list[int]]]:
        """Element type and shape of each table. kv_blocks: of this device."""
        ports = {name: port for name, port in self.inputs.items() if name.startswith(TABLES)}
        return table_shapes(ports, kv_blocks, state_blocks)

    def allocate(self, kv_blocks: int, state_blocks: int) -> None:
        """Make the tables and the requests. kv_blocks: of this device. Raises StageFailed."""
        try:
            shapes = self.shapes(kv_blocks, state_blocks)
            self.tables = allocate(self._core, self.device, shapes)
            self.requests = [
                self.compiled.create_infer_request() for _ in range(self._options.microbatches)
            ]
            for request in self.requests:
                for name, table in self.tables.items():
                    request.set_tensor(self.inputs[name], table)
        except (RuntimeError, MemoryError) as error:
            raise self.failed(error, "allocate") from error
        states = {name: t for name, t in self.tables.items() if name.startswith(STATE_TABLES)}
        self.state = OpenVinoTables(states, self.device) if states else None

    def table_bytes(self) -> tuple[int, int]:
        """Bytes of KV tables, and of state tables, as allocated."""
        sizes = {name: int(table.get_byte_size()) for name, table in self.tables.items()}
        kv = sum(size for name, size in sizes.items() if name.startswith(KV_TABLES))
        return kv, sum(sizes.values()) - kv

    def bind(self, microbatch: int, tensors: Mapping[str, Any]) -> None:
        """Bind everything but tables: inputs and outputs by name."""
        request = self.requests[microbatch]
        for ports in (self.inputs, self.outputs):
            for name, port in ports.items():
                if name not in self.tables:
                    request.set_tensor(port, tensors[name])

    def close(self) -> None:
        """Let go of requests, tables and the compiled model, in this order."""
        self.requests, self.state, self.tables, self.compiled = [], None, {}, None

    def failed(self, error: BaseException, doing: str) -> StageFailed:
        """``error`` as one of this stage and device."""
        return stage_failed(error, stage=self.index, device=self.device, doing=doing)


def _spec(port: Any) -> InputSpec:
    shape = port.get_partial_shape()
    rank = int(shape.rank.get_length())
    rows = -1 if rank == 0 else 0 if rank == 1 else int(shape[0].get_length())
    return InputSpec(port.get_element_type(), rows)
