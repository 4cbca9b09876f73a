"""What the suite needs of a runtime: tensors made from a seed, and compared bit by bit.

A kit is chosen by the name of the device: "null:0" needs no torch, everything else is torch's.
"""

from __future__ import annotations

import functools
import math
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from arcpp.backends.null_tensor import PREFIX
from arcpp.link.frame import DTYPE_BYTES

Hop = dict[str, Any]  # tensors by name
_POOL_BYTES = 4 << 20


class Kit(ABC):
    """Tensors on ``device``."""

    def __init__(self, device: str) -> None:
        self.device = device

    def pattern(self, dtype: str, shape: tuple[int, ...], seed: int) -> Any:
        """Any bits at all (NaNs with payloads, infinities, both zeros), the same for one seed."""
        return self.made(dtype, shape, pattern_bytes(dtype, shape, seed))

    @abstractmethod
    def made(self, dtype: str, shape: tuple[int, ...], raw: bytes) -> Any:
        """A tensor with its own copy of ``raw``, contiguous."""

    @abstractmethod
    def bits(self, tensor: Any) -> bytes:
        """Its bytes, as if it were contiguous."""

    @abstractmethod
    def describe(self, tensor: Any) -> tuple[str, tuple[int, ...], str]:
        """Its dtype, shape and device; the first as in TensorSpec."""

    @abstractmethod
    def overwrite(self, tensor: Any, other: Any) -> None:
        """Put the bytes of ``other`` into ``tensor``, of the same dtype and shape."""

    def zero(self, tensor: Any) -> None:
        """Make all its bytes zero."""
        dtype, shape, _ = self.describe(tensor)
        self.overwrite(tensor, self.made(dtype, shape, bytes(_nbytes(dtype, shape))))

    def arranged(self, tensor: Any, seed: int) -> Any:  # noqa: ARG002 (for those that can)
        """The same tensor as it might also lie in memory, not contiguous where that can be."""
        return tensor

    def views(self) -> Hop:
        """Tensors that are not contiguous, as many kinds as there are."""
        base = self.pattern("float32", (12, 16), 1)
        return {f"{seed}": self.arranged(base, seed) for seed in range(4)}

    @abstractmethod
    def strangers(self) -> Mapping[str, Callable[[], Any]]:
        """What looks like a tensor and cannot cross, by its name in the suite."""


def kit_for(device: str) -> Kit:
    """The kit for tensors on ``device``. Raises ImportError where its runtime is not there."""
    if device.startswith(PREFIX):
        from .null_kit import NullKit

        return NullKit(device)
    from .torch_kit import TorchKit

    return TorchKit(device)


def pattern_bytes(dtype: str, shape: tuple[int, ...], seed: int) -> bytes:
    """The bytes of Kit.pattern, the same on every machine."""
    size, pool = _nbytes(dtype, shape), _pool()
    at = random.Random(seed).randrange(_POOL_BYTES)  # noqa: S311 (to be repeated)
    raw = pool[at : at + size]
    while len(raw) < size:
        raw += pool[: size - len(raw)]
    return raw.translate(_BOOLEANS) if dtype == "bool" else raw


@functools.cache
def _pool() -> bytes:
    return random.Random(0).randbytes(_POOL_BYTES)  # noqa: S311


_BOOLEANS = bytes(byte & 1 for byte in range(256))


def _nbytes(dtype: str, shape: tuple[int, ...]) -> int:
    return math.prod(shape) * DTYPE_BYTES[dtype]
