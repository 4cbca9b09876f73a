"""Tensors of the null backend."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from arcpp.backends.null_tensor import NullTensor

from .kit import Kit


class NullKit(Kit):
    """Needs nothing but Python."""

    def made(self, dtype: str, shape: tuple[int, ...], raw: bytes) -> Any:
        """As in Kit."""
        return NullTensor.of(dtype, shape, raw, self.device)

    def bits(self, tensor: Any) -> bytes:
        """As in Kit."""
        return bytes(tensor.data)

    def describe(self, tensor: Any) -> tuple[str, tuple[int, ...], str]:
        """As in Kit."""
        return tensor.dtype, tensor.shape, tensor.device

    def overwrite(self, tensor: Any, other: Any) -> None:
        """As in Kit."""
        tensor.data[:] = other.data

    def strangers(self) -> Mapping[str, Callable[[], Any]]:
        """As in Kit."""
        number = lambda: NullTensor.of("complex64", (2,), bytes(16), self.device)  # noqa: E731
        return {
            "a complex tensor": number,
            "a sparse tensor": lambda: {0: 1},
            "a tensor without data": bytearray,
        }
