"""OpenVINO's paged cache: KV blocks per layer, and state tables beside them.

Unlike vLLM, each stage's KV tables and state tables are separate tensors, and blocks of
different layers need not be equal. Shapes follow the paged form that OpenVINO 2026.4 compiles
(GPU blocks of 16 tokens, CPU 32); the engine reads the real shapes from compiled inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod

from arcpp.errors import BadInput
from arcpp.profile.dtypes import SIZES
from arcpp.profile.model import KvShape, Layer, ModelProfile
from arcpp.units import GiB

from .layout import UNBOUNDED, cdiv, longest

#: Largest single allocation on a GPU without GPU_ENABLE_LARGE_ALLOCATIONS.
ALLOCATION_CAP = 4 * GiB
_GPU_BLOCK, _CPU_BLOCK = 16, 32


def kv_block_bytes(shape: KvShape, precision: str, platform: str, dtype: str) -> int:
    """Bytes of one layer's block, keys and values. See kv_table_bytes()."""
    return sum(kv_table_bytes(shape, precision, platform, dtype))


def kv_table_bytes(shape: KvShape, precision: str, platform: str, dtype: str) -> tuple[int, int]:
    """Bytes of one layer's block of keys, and of values, which are two tables.

    precision: auto (u8), u8, u4, f16, bf16 or f32. u8 and u4 keep a scale and a zero point per
    token and head: 16-bit on GPU, 32-bit on CPU; the CPU keeps those of keys per channel and
    block instead. Raises BadInput.
    """
    block = _CPU_BLOCK if platform == "cpu" else _GPU_BLOCK
    plain = {"f16": 2, "float16": 2, "bf16": 2, "bfloat16": 2, "f32": 4, "float32": 4}
    chosen = "u8" if precision in ("auto", "i8") else precision
    if chosen in plain:
        each = shape.heads * block * plain[chosen]
        return each * shape.head_dim, each * shape.head_dim_v
    if chosen not in ("u8", "u4"):
        right = f"is not a KV precision of OpenVINO: write u8, u4 or f16 (model {dtype})"
        raise BadInput("--kv-cache-dtype", precision, right)
    parts = 2 if chosen == "u4" else 1
    if platform == "cpu":
        keys = cdiv(block, parts) * shape.head_dim + 8 * shape.head_dim
        values = block * (cdiv(shape.head_dim_v, parts) + 8)
        return shape.heads * keys, shape.heads * values
    keys, values = (cdiv(size, parts) + 4 for size in (shape.head_dim, shape.head_dim_v))
    return shape.heads * block * keys, shape.heads * block * values


def state_bytes(layer: Layer) -> int:
    """Bytes of one state slot: float32, with one convolution column more than vLLM keeps."""
    return sum(_state_tables(layer))


def largest_state(layer: Layer) -> int:
    """Bytes of one slot in the larger of a layer's two state tables."""
    return max(_state_tables(layer))


def _state_tables(layer: Layer) -> tuple[int, int]:
    if layer.state is None:
        return 0, 0
    columns = (layer.state.conv_rows + 1) * layer.state.conv_dim
    return columns * SIZES["float32"], prod(layer.state.ssm) * SIZES["float32"]


@dataclass(frozen=True)
class Place:
    """Where a stage runs. cpu: on the processor. largest: of its single allocations, in bytes,
    or None where nothing limits them."""

    cpu: bool
    largest: int | None


class _Tables:
    """Sizes of one kind of device for one block of the engine, by layer, as prefix sums."""

    def __init__(
        self, profile: ModelProfile, precision: str, cpu: bool, block: int, drafts: bool
    ) -> None:
        platform, own = ("cpu", _CPU_BLOCK) if cpu else ("gpu", _GPU_BLOCK)

        def tables(layer: Layer) -> tuple[int, int]:
            if layer.kv is None:
                return 0, 0
            sizes = kv_table_bytes(layer.kv, precision, platform, profile.dtype)
            return sizes[0] * (block // own), sizes[1] * (block // own)

        both = [tables(layer) for layer in profile.layers]
        self.largest = [max(pair) for pair in both]
        self.sums = [0, *accumulate(keys + values for keys, values in both)]
        # The draft layers' cache lies on the last stage.
        self.drafts = sum(sum(tables(layer)) for layer in profile.mtp_layers) if drafts else 0


class PagedLayout:
    """The engine's cache for one model. See CacheLayout.

    A block is as many tokens as one block of the device with the largest has: with a stage on
    the processor 32, of which a GPU stage holds two blocks of its own 16.
    """

    label = "openvino"
    null_blocks = 0

    def __init__(
        self, profile: ModelProfile, *, precision: str, places: Sequence[Place], spec_tokens: int
    ) -> None:
        """places: by stage. Raises BadInput for a KV precision OpenVINO does not have."""
        cpus = {place.cpu for place in places}
        self.block_tokens = _CPU_BLOCK if True in cpus else _GPU_BLOCK
        self._places = tuple(places)
        self._slots = 1 + spec_tokens
        tables = {
            cpu: _Tables(profile, precision, cpu, self.block_tokens, spec_tokens > 0)
            for cpu in cpus
        }
        self._tables = [tables[place.cpu] for place in places]
        self._layers = len(profile.layers)
        self._states = [state_bytes(layer) for layer in profile.layers]
        self._state_tables = [largest_state(layer) for layer in profile.layers]
        self._state_sums = [0, *accumulate(self._states)]

    @property
    def caches(self) -> bool:
        """See CacheLayout."""
        return self._tables[0].sums[-1] > 0

    def bytes_per_block(self, index: int, low: int, high: int) -> int:
        """See CacheLayout."""
        tables = self._tables[index]
        drafts = tables.drafts if high == self._layers else 0
        return tables.sums[high] - tables.sums[low] + drafts

    def largest_allocation(
        self, index: int, low: int, high: int, blocks: int, sequences: int
    ) -> int:
        """The largest of the layers' key, value and state tables, each an allocation."""
        table = max(self._tables[index].largest[low:high], default=0)
        state = max(self._state_tables[low:high], default=0)
        return max(blocks * table, (sequences * self._slots + 1) * state)

    def fixed_state(self, index: int, low: int, high: int, sequences: int) -> int:
        """A slot per running request (one more per draft token), and the permanent zero slot."""
        del index
        each = self._state_sums[high] - self._state_sums[low]
        return each * (sequences * self._slots + 1)

    def block_limit(self, index: int, low: int, high: int, sequences: int) -> int:
        """Blocks at which a layer's table reaches the largest allocation of the device."""
        largest = self._places[index].largest
        if largest is None:
            return UNBOUNDED
        if self.largest_allocation(index, low, high, 0, sequences) > largest:
            return -1
        table = max(self._tables[index].largest[low:high], default=0)
        return largest // table if table else UNBOUNDED

    def runs(self, index: int, low: int, high: int) -> bool:
        """Every cut runs: a stage needs no cache of its own."""
        del index, low, high
        return True

    def state_blocks(self, tokens: int = 1) -> int:
        """None: state lives in its own tables."""
        del tokens
        return 0

    def blocks_per_request(self, tokens: int) -> int:
        """See CacheLayout."""
        return cdiv(tokens, self.block_tokens) if self.caches else 0

    def longest_request(self, num_blocks: int, limit: int) -> int:
        """See CacheLayout."""
        return longest(self, num_blocks, limit)

    def capacity_tokens(self, num_blocks: int, length: int) -> int:
        """All blocks, whatever the length of requests."""
        return num_blocks * self.block_tokens if length else 0

    def max_sequences(self, num_blocks: int, asked: int) -> int:
        """See CacheLayout."""
        return min(asked, num_blocks) if self.caches else asked
