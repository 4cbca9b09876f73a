"""What a planner asks of a host's cache, whichever host it is."""

from __future__ import annotations

from typing import Protocol

#: Blocks of a stage that nothing bounds.
UNBOUNDED = 2**62


class CacheLayout(Protocol):
    """Cache arithmetic of one host for one model and one set of options."""

    @property
    def label(self) -> str:
        """Host and version, as printed."""

    @property
    def block_tokens(self) -> int:
        """Tokens in an attention block."""

    @property
    def null_blocks(self) -> int:
        """Blocks that no request can have."""

    @property
    def caches(self) -> bool:
        """Whether the model keeps any cache at all."""

    def bytes_per_block(self, index: int, low: int, high: int) -> int:
        """Bytes one block takes on stage ``index`` that holds layers [low, high)."""

    def fixed_state(self, index: int, low: int, high: int, sequences: int) -> int:
        """Bytes of state tables beside the blocks, for ``sequences`` running requests."""

    def block_limit(self, index: int, low: int, high: int, sequences: int) -> int:
        """Most blocks such a stage can hold whatever its memory; negative: not even its state."""

    def largest_allocation(
        self, index: int, low: int, high: int, blocks: int, sequences: int
    ) -> int:
        """Bytes of the largest single allocation for ``blocks`` and ``sequences`` there."""

    def runs(self, index: int, low: int, high: int) -> bool:
        """Whether the host can run such a stage at all."""

    def state_blocks(self, tokens: int = 1) -> int:
        """Blocks one request of ``tokens`` takes for recurrent state."""

    def blocks_per_request(self, tokens: int) -> int:
        """Blocks one request of ``tokens`` takes, state included."""

    def longest_request(self, num_blocks: int, limit: int) -> int:
        """Longest single request that ``num_blocks`` hold, at most ``limit``; 0 if none."""

    def capacity_tokens(self, num_blocks: int, length: int) -> int:
        """Tokens the host reports it can keep, for requests of ``length``."""

    def max_sequences(self, num_blocks: int, asked: int) -> int:
        """Requests that can run at once, at most ``asked``."""


def cdiv(a: int, b: int) -> int:
    """``a / b`` rounded up."""
    return -(-a // b)


def longest(layout: CacheLayout, num_blocks: int, limit: int) -> int:
    """longest_request() by bisection, for any layout whose cost grows with the length."""
    usable = num_blocks - layout.null_blocks
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if layout.blocks_per_request(middle) <= usable:
            low = middle
        else:
            high = middle - 1
    return low
