"""What changed in vLLM between the versions arcpp plans for (0.20 to 0.33).

Each field was read in the sources of the releases named beside it; 0.33 is taken to be as
0.32 where nothing else is said.
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
        """Whether prefix caching is on by default for hybrids (from 0.24)."""
        return self.release >= (0, 24)

    @property
    def gpu_memory_utilization(self) -> float:
        """Default of ``--gpu-memory-utilization``."""
        return 0.92


def vllm_version(text: str) -> VllmVersion:
    """Rules of vLLM ``text`` such as ``0.32`` or ``0.32.0+cpu``. Raises BadInput."""
    match = _VERSION.fullmatch(text.strip())
    if match is None or len(text) > 60:
        raise BadInput("--host vllm@", text, f"is not a vLLM version (supported: {SUPPORTED})")
    release = int(match[1]), int(match[2])
    if not _OLDEST <= release <= _LATEST:
        raise BadInput("--host vllm@", text, f"is not a version arcpp knows ({SUPPORTED})")
    return VllmVersion(text.strip(), release)
