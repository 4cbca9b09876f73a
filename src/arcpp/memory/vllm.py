"""vLLM's KV cache arithmetic: block size, groups over layer types, pages, request cost.

Follows v1/core/kv_cache_utils.py, v1/kv_cache_interface.py and platforms/interface.py of
vLLM 0.32; :mod:`.versions` says where other versions differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import lcm

from arcpp.errors import BadInput
from arcpp.profile.model import FULL, SLIDING, Layer, ModelProfile

from .kv_dtypes import kv_token_bytes
from .versions import VllmVersion


@dataclass(frozen=True)
class KvOptions:
    """What the host was told about its cache; see the vLLM options of the same names.

    kernel_block: smallest block the attention backend runs (16 on XPU, 32 on CPU).
    block_align: multiple that a hybrid's block is rounded up to at the end (64 on XPU).
    in_flight_tokens: most tokens scheduled and not yet settled (sliding windows keep them).
    """

    version: VllmVersion
    dtype: str
    kv_cache_dtype: str
    block_size: int
    kernel_block: int
    block_align: int
    prefix_caching: bool
    mamba_cache_mode: str
    spec_tokens: int
    in_flight_tokens: int
    ssm_dtype: str | None = None


@dataclass(frozen=True)
class Group:
    """Layers that share one block table.

    pages: bytes per block of each member, by position in the model's layer order (draft
    layers follow the model's own). block_tokens: tokens in a block (attention kinds).
    """

    kind: str
    pages: dict[int, int]
    block_tokens: int
    window: int | None = None


def cdiv(a: int, b: int) -> int:
    """``a / b`` rounded up."""
    return -(-a // b)


class KvLayout:
    """The cache of one model under one set of options; the same on every rank."""

    def __init__(self, profile: ModelProfile, options: KvOptions) -> None:
        """Raises BadInput for KV formats and sizes that cannot be."""
        self.options = options
        self.model_layers = len(profile.layers)
        self.layers: tuple[Layer, ...] = profile.layers
        if options.spec_tokens:
            self.layers = profile.layers + profile.mtp_layers
        self.block_tokens = _block_tokens(profile, options)
        self.groups = _groups(self.layers, self.block_tokens, options)
        #: Per group: bytes of one block over layers [0, i).
        self._sums = [
            [0, *accumulate(group.pages.get(i, 0) for i in range(len(self.layers)))]
            for group in self.groups
        ]

    @property
    def null_blocks(self) -> int:
        """Blocks that checks leave out."""
        return 1 if self.options.version.null_block_reserved else 0

    def bytes_per_block(self, low: int, high: int) -> int:
        """Bytes one block takes on a rank that holds layers [low, high)."""
        if high == self.model_layers:
            high = len(self.layers)  # draft layers live on the last rank
        return max((sums[high] - sums[low] for sums in self._sums), default=0)

    def state_blocks(self) -> int:
        """Blocks one request takes for recurrent state, over all groups."""
        spec = self.options.spec_tokens
        each = (2 if self.options.mamba_cache_mode == "align" else 1) + spec
        return sum(each for group in self.groups if group.block_tokens == 0)

    def attention_groups(self) -> int:
        """Groups from which every running request takes at least one block."""
        return sum(1 for group in self.groups if group.block_tokens)

    def blocks_per_request(self, tokens: int) -> int:
        """Blocks one request of ``tokens`` takes, over all groups."""
        needed = self.state_blocks()
        for group in self.groups:
            if not group.block_tokens:
                continue
            if group.window is None:
                needed += cdiv(tokens, group.block_tokens)
            else:
                kept = min(group.window - 1 + self.options.in_flight_tokens, tokens)
                needed += cdiv(kept, group.block_tokens) + 1
        return needed

    def longest_request(self, num_blocks: int, limit: int) -> int:
        """Longest single request that ``num_blocks`` hold, at most ``limit``; 0 if none."""
        usable = num_blocks - self.null_blocks
        low, high = 0, limit
        while low < high:
            middle = (low + high + 1) // 2
            if self.blocks_per_request(middle) <= usable:
                low = middle
            else:
                high = middle - 1
        return low

    def capacity_tokens(self, num_blocks: int, length: int) -> int:
        """Tokens the host's log reports for requests of ``length`` (its own float arithmetic)."""
        if not self.groups:
            return 0
        return int(num_blocks / self.blocks_per_request(length) * length)

    def max_sequences(self, num_blocks: int, asked: int) -> int:
        """Requests that can run at once: each holds its state and one block per group."""
        each = self.state_blocks() + self.attention_groups()
        return asked if not each else min(asked, max(0, num_blocks - self.null_blocks) // each)


def _block_tokens(profile: ModelProfile, options: KvOptions) -> int:
    """Tokens per attention block: for hybrids grown until its page holds a layer's state."""
    if options.block_size < 1:
        raise BadInput("--block-size", options.block_size, "is not a number of tokens")
    states = [layer.state for layer in profile.layers if layer.state is not None]
    shapes = [layer.kv for layer in profile.layers if layer.kv is not None]
    if not states or not shapes:
        return options.block_size
    state = max(_state_bytes(layer, options) for layer in profile.layers)
    token = kv_token_bytes(shapes[0], options.kv_cache_dtype, options.dtype)
    step = max(options.kernel_block, options.block_size)
    grown = step * cdiv(state, step * token)
    grown = options.kernel_block * cdiv(grown, options.kernel_block)
    block = max(options.block_size, grown)
    return options.block_align * cdiv(block, options.block_align)


def _state_bytes(layer: Layer, options: KvOptions) -> int:
    if layer.state is None:
        return 0
    return layer.state.bytes(options.dtype, options.spec_tokens, options.ssm_dtype)


def _groups(layers: Sequence[Layer], block: int, options: KvOptions) -> tuple[Group, ...]:
    """Layers by block table. Layers of one type are dealt out in turn over equal groups."""
    types: dict[tuple[object, ...], list[int]] = {}
    for index, layer in enumerate(layers):
        if layer.kv is not None:
            token = kv_token_bytes(layer.kv, options.kv_cache_dtype, options.dtype)
            types.setdefault((layer.kind, token, layer.window, layer.kv), []).append(index)
        elif layer.state is not None:
            size = _state_bytes(layer, options)
            types.setdefault((layer.kind, size, None, layer.state), []).append(index)
    if not types:
        return ()
    same = _one_group(layers, types, block)
    if same is not None:
        return (same,)
    page, tokens = _common_page(layers, types, block)
    counts = [len(members) for members in types.values()]
    size = min(counts)
    if max(counts) < size * 1.5:
        size = max(counts)
    groups: list[Group] = []
    for key, members in types.items():
        number = cdiv(len(members), size)
        for turn in range(number):
            pages = dict.fromkeys(members[turn::number], page)
            groups.append(Group(str(key[0]), pages, tokens[key], layers[members[0]].window))
    return tuple(groups)


def _one_group(
    layers: Sequence[Layer], types: dict[tuple[object, ...], list[int]], block: int
) -> Group | None:
    """The single group of a model whose layers all need the same number of token slots."""
    kinds = {(layers[members[0]].kind, layers[members[0]].window) for members in types.values()}
    recurrent = any(layers[members[0]].state is not None for members in types.values())
    if len(kinds) > 1 or (recurrent and len({key[1] for key in types}) > 1):
        return None
    kind, window = next(iter(kinds))
    pages: dict[int, int] = {}
    for key, members in types.items():
        size = key[1]
        assert isinstance(size, int)
        pages.update(dict.fromkeys(members, size if recurrent else size * block))
    return Group(kind, dict(sorted(pages.items())), 0 if recurrent else block, window)


def _common_page(
    layers: Sequence[Layer], types: dict[tuple[object, ...], list[int]], block: int
) -> tuple[int, dict[tuple[object, ...], int]]:
    """The page all types share, and tokens per block of each type (0 for recurrent ones).

    The largest page wins; an attention type whose page divides it gets more tokens per block,
    any other is padded.
    """
    pages: dict[tuple[object, ...], int] = {}
    for key, members in types.items():
        size = key[1]
        assert isinstance(size, int)
        pages[key] = size if layers[members[0]].state is not None else size * block
    largest = max(pages.values())
    tokens = {}
    for key, members in types.items():
        if layers[members[0]].kind not in (FULL, SLIDING):
            tokens[key] = 0
        elif largest % pages[key] == 0:
            tokens[key] = block * (largest // pages[key])
        else:
            tokens[key] = block
    return largest, tokens


def least_common_block(groups: Sequence[Group]) -> int:
    """Tokens at which every attention group starts a new block (the scheduler's block)."""
    return lcm(*(group.block_tokens for group in groups if group.block_tokens))
