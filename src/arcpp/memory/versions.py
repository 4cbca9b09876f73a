"""What changed in vLLM between the versions arcpp plans for (0.20 to 0.33).

Each property was read in the sources of 0.20.0, 0.21.0, 0.22.1, 0.23.0, 0.24.0, 0.25.1, 0.26.0,
0.27.1, 0.28.0, 0.29.0, 0.30.0, 0.31.0, 0.32.0 and 0.33.0.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from arcpp.errors import BadInput

SUPPORTED = "0.20 to 0.33"
NEWEST = "0.33"
_OLDEST, _LATEST = (0, 20), (0, 33)
_VERSION = re.compile(r"(\d{1,4})\.(\d{1,4})(?:[.+\-a-z0-9]*)", re.IGNORECASE | re.ASCII)


@dataclass(frozen=True)
class VllmVersion:
    """Rules of one version. text: as asked for."""

    text: str
    release: tuple[int, int]

    @property
    def null_block_reserved(self) -> bool:
        """Whether checks plan without the one block the pool never hands out (from 0.29)."""
        return self.release >= (0, 29)

    @property
    def hybrid_prefix_caching(self) -> bool:
        """Whether prefix caching is on by default for hybrids (from 0.26)."""
        return self.release >= (0, 26)

    @property
    def gpu_memory_utilization(self) -> float:
        """Default of ``--gpu-memory-utilization`` (0.92 in all of them; 0.9 before 0.20)."""
        return 0.92

    @property
    def logs_blocks_of_one_group(self) -> bool:
        """Whether the log counts tokens as blocks over groups (0.20), not by concurrency."""
        return self.release < (0, 21)

    @property
    def mamba2_mode(self) -> str:
        """Mamba cache mode that prefix caching selects for Mamba-2 models (``all`` to 0.27)."""
        return "all" if self.release < (0, 28) else "align"

    @property
    def all_mode_counts_drafts(self) -> bool:
        """Whether mode ``all`` adds a block per draft token (from 0.22)."""
        return self.release >= (0, 22)

    @property
    def mamba2_checkpoint_blocks(self) -> int:
        """Blocks mode ``align`` adds for a checkpoint inside a prefill, Mamba-2 (from 0.32)."""
        return 1 if self.release >= (0, 32) else 0

    @property
    def windows_keep_all_in_flight(self) -> bool:
        """Whether a window keeps the tokens of every concurrent batch (from 0.26), not of one."""
        return self.release >= (0, 26)

    @property
    def window_block(self) -> str:
        """Block a sliding layer starts from: that of full layers (``same``) to 0.24, the smallest
        the kernel runs (``kernel``) to 0.29, then the largest multiple of it within the full
        layers' block (``within``)."""
        if self.release < (0, 25):
            return "same"
        return "kernel" if self.release < (0, 30) else "within"

    @property
    def pads_attention_pages(self) -> bool:
        """Whether attention pages that do not divide the largest are padded (from 0.24)."""
        return self.release >= (0, 24)

    @property
    def one_allocation(self) -> bool:
        """Whether a rank's whole pool is one allocation (from 0.29), not one per layer."""
        return self.release >= (0, 29)

    @property
    def xpu_kernel_block(self) -> int:
        """Multiple of tokens that XPU flash attention runs (64 from 0.32, 16 before)."""
        return 64 if self.release >= (0, 32) else 16


def vllm_version(text: str) -> VllmVersion:
    """Rules of vLLM ``text`` such as ``0.32`` or ``0.32.0+cpu``. Raises BadInput."""
    match = _VERSION.fullmatch(text.strip())
    if match is None or len(text) > 60:
        raise BadInput("--host vllm@", text, f"is not a vLLM version (supported: {SUPPORTED})")
    release = int(match[1]), int(match[2])
    if not _OLDEST <= release <= _LATEST:
        raise BadInput("--host vllm@", text, f"is not a version arcpp knows ({SUPPORTED})")
    return VllmVersion(text.strip(), release)
