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
from arcpp.profile.model import Layer, ModelProfile

from .kv_dtypes import kv_token_bytes
from .layout import UNBOUNDED, cdiv, longest
from .versions import VllmVersion


@dataclass(frozen=True)
class KvOptions:
    """What the host was told about its cache; see the vLLM options of the same names.

    kernel_block: smallest block the attention backend runs (16 on XPU, 32 on CPU).
    block_align: multiple that a hybrid's block is rounded up to at the end (64 on XPU).
    in_flight_tokens: most tokens scheduled and not yet settled (sliding windows keep them).
    checkpoint_blocks: blocks that mode ``align`` adds per group and request.
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
    checkpoint_blocks: int = 0
    ssm_dtype: str | None = None


@dataclass(frozen=True)
class Group:
    """Layers that share one block table.

    pages: bytes per block of each member, by position in the model's layer order (draft
    layers follow the model's own). block_tokens: tokens in a block, 0 for recurrent state.
    """

    kind: str
    pages: dict[int, int]
    block_tokens: int
    window: int | None = None


class KvLayout:
    """The cache of one model under one set of options; the same on every rank."""

    def __init__(self, profile: ModelProfile, options: KvOptions) -> None:
        """Raises BadInput for KV formats and sizes that cannot be."""
        self.options = options
        self.model_layers = len(profile.layers)
        self.layers: tuple[Layer, ...] = profile.layers
        if options.spec_tokens:
            self.layers = profile.layers + profile.mtp_layers
        self.block_tokens, self.state_tokens = _block_tokens(profile, options)
        self.groups = _groups(self.layers, self.block_tokens, options)
        #: Per group: bytes of one block over layers [0, i).
        self._sums = [
            [0, *accumulate(group.pages.get(i, 0) for i in range(len(self.layers)))]
            for group in self.groups
        ]
        self._known: dict[tuple[int, int], int] = {}

    @property
    def label(self) -> str:
        """See CacheLayout."""
        return f"vllm@{self.options.version.text}"

    @property
    def caches(self) -> bool:
        """See CacheLayout."""
        return bool(self.groups)

    @property
    def null_blocks(self) -> int:
        """The one block the pool never hands out, where checks leave it out."""
        return 1 if self.options.version.null_block_reserved else 0

    def fixed_state(self, index: int, low: int, high: int, sequences: int) -> int:
        """None: state shares the pool of blocks."""
        del index, low, high, sequences
        return 0

    def block_limit(self, index: int, low: int, high: int, sequences: int) -> int:
        """None: vLLM takes what its budget allows, and fails where a driver refuses."""
        del index, low, high, sequences
        return UNBOUNDED

    def runs(self, index: int, low: int, high: int) -> bool:
        """vLLM divides by a rank's bytes per block: a rank without any cache cannot start."""
        return not self.groups or self.bytes_per_block(index, low, high) > 0

    def bytes_per_block(self, index: int, low: int, high: int) -> int:
        """Bytes one block takes on a rank that holds layers [low, high)."""
        del index  # the same rules on every rank
        known = self._known.get((low, high))
        if known is None:
            # Draft layers live on the last rank.
            end = len(self.layers) if high == self.model_layers else high
            known = max((sums[end] - sums[low] for sums in self._sums), default=0)
            self._known[low, high] = known
        return known

    def largest_allocation(
        self, index: int, low: int, high: int, blocks: int, sequences: int
    ) -> int:
        """The whole pool where it is one allocation, else the largest layer's part of it."""
        del sequences
        if self.options.version.one_allocation:
            return blocks * self.bytes_per_block(index, low, high)
        end = len(self.layers) if high == self.model_layers else high
        pages = (page for group in self.groups for i, page in group.pages.items() if low <= i < end)
        return blocks * max(pages, default=0)

    def state_blocks(self, tokens: int = 1) -> int:
        """Blocks one request of ``tokens`` takes for recurrent state, over all groups."""
        options = self.options
        if options.mamba_cache_mode == "all":
            drafts = options.spec_tokens if options.version.all_mode_counts_drafts else 0
            each = cdiv(tokens, self.state_tokens) + drafts
        elif options.mamba_cache_mode == "align":
            each = 2 + options.spec_tokens + options.checkpoint_blocks
        else:
            each = 1 + options.spec_tokens
        return sum(each for group in self.groups if group.block_tokens == 0)

    def attention_groups(self) -> int:
        """Groups from which every running request takes at least one block."""
        return sum(1 for group in self.groups if group.block_tokens)

    def blocks_per_request(self, tokens: int) -> int:
        """Blocks one request of ``tokens`` takes, over all groups."""
        needed = self.state_blocks(tokens)
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
        return longest(self, num_blocks, limit)

    def capacity_tokens(self, num_blocks: int, length: int) -> int:
        """Tokens the host's log reports for requests of ``length``, by its own arithmetic.

        All versions count every block, the null block too, and divide in floating point.
        """
        if not self.groups or length < 1:
            return 0
        if self.options.version.logs_blocks_of_one_group:
            blocks = [group.block_tokens or self.state_tokens for group in self.groups]
            return num_blocks // len(self.groups) * min(blocks)
        return int(num_blocks / self.blocks_per_request(length) * length)

    def max_sequences(self, num_blocks: int, asked: int) -> int:
        """Requests that can run at once: each holds its state and one block per group."""
        each = self.state_blocks() + self.attention_groups()
        return asked if not each else min(asked, max(0, num_blocks - self.null_blocks) // each)


def _block_tokens(profile: ModelProfile, options: KvOptions) -> tuple[int, int]:
    """Tokens per attention block and per state block.

    For hybrids the block grows until its page holds a layer's state. A state block covers the
    attention block's tokens, or the whole length in mode ``none``.
    """
    states = [layer.state for layer in profile.layers if layer.state is not None]
    shapes = [layer.kv for layer in profile.layers if layer.kv is not None]
    if not states or not shapes:
        return options.block_size, profile.max_model_len
    state = max(_state_bytes(layer, options) for layer in profile.layers)
    token = kv_token_bytes(shapes[0], options.kv_cache_dtype, options.dtype)
    step = max(options.kernel_block, options.block_size)
    if options.mamba_cache_mode == "all":
        step = lcm(profile.mamba_chunk or 2048, step)
    grown = step * cdiv(state, step * token)
    if options.version.release >= (0, 29):
        grown = options.kernel_block * cdiv(grown, options.kernel_block)
    block = max(options.block_size, grown)
    block = options.block_align * cdiv(block, options.block_align)
    if options.mamba_cache_mode == "none":
        return block, profile.max_model_len
    return block, grown if options.mamba_cache_mode == "all" else block


def _state_bytes(layer: Layer, options: KvOptions) -> int:
    if layer.state is None:
        return 0
    return layer.state.bytes(options.dtype, options.spec_tokens, options.ssm_dtype)


@dataclass(frozen=True)
class _Type:
    """Layers of one cache spec. size: bytes per token, or per state where ``tokens`` is 0.
    tokens: tokens in a block before pages are made equal."""

    kind: str
    window: int | None
    size: int
    tokens: int

    @property
    def page(self) -> int:
        return self.size * (self.tokens or 1)


def _types(
    layers: Sequence[Layer], block: int, options: KvOptions
) -> dict[tuple[_Type, object], list[int]]:
    """Layer positions by spec, in order of first appearance."""
    found: dict[tuple[_Type, object], list[int]] = {}
    for index, layer in enumerate(layers):
        if layer.kv is not None:
            size = kv_token_bytes(layer.kv, options.kv_cache_dtype, options.dtype)
            tokens = block if layer.window is None else _window_block(block, options)
            key = (_Type(layer.kind, layer.window, size, tokens), layer.kv)
            found.setdefault(key, []).append(index)
        elif layer.state is not None:
            size = _state_bytes(layer, options)
            found.setdefault((_Type(layer.kind, None, size, 0), layer.state), []).append(index)
    return found


def _window_block(block: int, options: KvOptions) -> int:
    """Tokens in a sliding layer's block before pages are made equal."""
    rule, kernel = options.version.window_block, options.kernel_block
    if rule == "same":
        return block
    return kernel if rule == "kernel" else max(kernel, block // kernel * kernel)


def _groups(layers: Sequence[Layer], block: int, options: KvOptions) -> tuple[Group, ...]:
    """Layers by block table. Layers of one type are dealt out in turn over equal groups."""
    types = _types(layers, block, options)
    if not types:
        return ()
    same = _one_group(types)
    if same is not None:
        return (same,)
    page = max(kind.page for kind, _ in types)
    counts = [len(members) for members in types.values()]
    size = min(counts)
    if max(counts) < size * 1.5:
        size = max(counts)
    groups: list[Group] = []
    for (kind, _), members in types.items():
        tokens = _tokens_of_page(kind, page, options)
        number = cdiv(len(members), size)
        for turn in range(number):
            pages = dict.fromkeys(members[turn::number], page)
            groups.append(Group(kind.kind, pages, tokens, kind.window))
    return tuple(groups)


def _one_group(types: dict[tuple[_Type, object], list[int]]) -> Group | None:
    """The single group of a model whose layers all need the same number of token slots."""
    kinds = [kind for kind, _ in types]
    if len({(kind.kind, kind.window, kind.tokens) for kind in kinds}) > 1:
        return None
    if kinds[0].tokens == 0 and len({kind.size for kind in kinds}) > 1:
        return None
    pages = {index: kind.page for (kind, _), members in types.items() for index in members}
    return Group(kinds[0].kind, dict(sorted(pages.items())), kinds[0].tokens, kinds[0].window)


def _tokens_of_page(kind: _Type, page: int, options: KvOptions) -> int:
    """Tokens of this type that the common page holds: more where its own page divides it,
    else the page is padded."""
    if kind.tokens == 0:
        return 0
    if page % kind.page == 0:
        return kind.tokens * (page // kind.page)
    if not options.version.pads_attention_pages:
        right = f"cannot share blocks with other layers in vLLM {options.version.text}"
        raise BadInput("--block-size", kind.tokens, right)
    return kind.tokens
