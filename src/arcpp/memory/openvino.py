"""OpenVINO's paged cache: KV blocks per layer, and state tables beside them.

Unlike vLLM, each stage's KV tables and state tables are separate tensors, and blocks of
different layers need not be equal. Shapes follow the paged form that OpenVINO 2026.4 compiles
(GPU blocks of 16 tokens, CPU 32); the engine reads the real shapes from compiled inputs.
"""

from __future__ import annotations

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
    """Bytes of one layer's block. precision: auto (u8), u8, u4, f16, bf16 or f32.

    u8 and u4 keep a scale and a zero point per token and head: 16-bit on GPU, 32-bit on CPU;
    the CPU keeps those of keys per channel and block instead. Raises BadInput.
    """
    block = _CPU_BLOCK if platform == "cpu" else _GPU_BLOCK
    plain = {"f16": 2, "float16": 2, "bf16": 2, "bfloat16": 2, "f32": 4, "float32": 4}
    chosen = "u8" if precision in ("auto", "i8") else precision
    if chosen in plain:
        return shape.elements * block * plain[chosen]
    if chosen not in ("u8", "u4"):
        right = f"is not a KV precision of OpenVINO: write u8, u4 or f16 (model {dtype})"
        raise BadInput("--kv-cache-dtype", precision, right)
    parts = 2 if chosen == "u4" else 1
    if platform == "cpu":
        keys = cdiv(block, parts) * shape.head_dim + 8 * shape.head_dim
        values = block * (cdiv(shape.head_dim_v, parts) + 8)
        return shape.heads * (keys + values)
    per_token = cdiv(shape.head_dim, parts) + cdiv(shape.head_dim_v, parts) + 8
    return shape.heads * block * per_token


def state_bytes(layer: Layer) -> int:
    """Bytes of one state slot: float32, with one convolution column more than vLLM keeps."""
    if layer.state is None:
        return 0
    columns = (layer.state.conv_rows + 1) * layer.state.conv_dim
    return (columns + prod(layer.state.ssm)) * SIZES["float32"]


class PagedLayout:
    """The engine's cache for one model. See CacheLayout."""

    label = "openvino"
    null_blocks = 0

    def __init__(
        self,
        profile: ModelProfile,
        *,
        precision: str,
        platform: str,
        spec_tokens: int,
        large_allocations: bool,
    ) -> None:
        """Raises BadInput for a KV precision OpenVINO does not have."""
        self.block_tokens = _CPU_BLOCK if platform == "cpu" else _GPU_BLOCK
        self._slots = 1 + spec_tokens
        self._capped = platform != "cpu" and not large_allocations
        blocks = [
            0 if layer.kv is None else kv_block_bytes(layer.kv, precision, platform, profile.dtype)
            for layer in profile.layers
        ]
        self._states = [state_bytes(layer) for layer in profile.layers]
        # Keys and values are separate tensors of equal size, near enough, for the cap.
        self._tensors = [cdiv(size, 2) for size in blocks]
        self._block_sums = [0, *accumulate(blocks)]
        self._drafts = 0
        if spec_tokens:  # the draft layers' cache lies on the last stage
            shapes = [layer.kv for layer in profile.mtp_layers if layer.kv is not None]
            self._drafts = sum(
                kv_block_bytes(shape, precision, platform, profile.dtype) for shape in shapes
            )
        self._state_sums = [0, *accumulate(self._states)]

    @property
    def caches(self) -> bool:
        """See CacheLayout."""
        return self._block_sums[-1] > 0

    def bytes_per_block(self, low: int, high: int) -> int:
        """See CacheLayout."""
        drafts = self._drafts if high == len(self._tensors) else 0
        return self._block_sums[high] - self._block_sums[low] + drafts

    def fixed_state(self, low: int, high: int, sequences: int) -> int:
        """A slot per running request (one more per draft token), and the permanent zero slot."""
        each = self._state_sums[high] - self._state_sums[low]
        return each * (sequences * self._slots + 1)

    def block_limit(self, low: int, high: int) -> int:
        """Blocks at which a layer's key table reaches the allocation cap."""
        largest = max(self._tensors[low:high], default=0)
        return ALLOCATION_CAP // largest if self._capped and largest else UNBOUNDED

    def runs(self, low: int, high: int) -> bool:
        """Every cut runs: a stage needs no cache of its own."""
        del low, high
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
