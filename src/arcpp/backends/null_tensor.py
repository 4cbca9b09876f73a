"""Tensors of the null backend: bytes with a dtype, a shape and a device, and nothing to compute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from arcpp.link.frame import DTYPE_BYTES, TensorSpec

#: Every device of the null backend is named by this and a number ("null:0").
PREFIX = "null:"


@dataclass(frozen=True, eq=False)
class NullTensor:
    """A contiguous tensor on a virtual device.

    dtype: as in TensorSpec ("bfloat16"). device: "null:0". data: its bytes, which may be
    overwritten. Raises ValueError when there are more or fewer than dtype and shape say.
    """

    dtype: str
    shape: tuple[int, ...]
    device: str
    data: bytearray

    def __post_init__(self) -> None:
        if self.dtype in DTYPE_BYTES and len(self.data) != self.nbytes:
            raise ValueError(f"{len(self.data)} bytes for {self.dtype}{list(self.shape)}")

    @staticmethod
    def of(dtype: str, shape: Sequence[int], raw: bytes, device: str = "null:0") -> NullTensor:
        """A tensor with a copy of ``raw``."""
        return NullTensor(dtype, tuple(shape), device, bytearray(raw))

    @property
    def nbytes(self) -> int:
        """Its size in bytes."""
        return TensorSpec("", self.dtype, self.shape).nbytes
