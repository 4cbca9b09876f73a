"""Tensors of torch, on any of its devices. torch is imported when a kit is made."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from .kit import Hop, Kit


class TorchKit(Kit):
    """Raises ImportError where torch is not there."""

    def __init__(self, device: str) -> None:
        super().__init__(device)
        import torch

        self._torch: Any = torch

    def made(self, dtype: str, shape: tuple[int, ...], raw: bytes) -> Any:
        """As in Kit."""
        torch = self._torch
        kind = getattr(torch, dtype)
        if not raw:
            return torch.empty(shape, dtype=kind, device=self.device)
        flat = torch.frombuffer(bytearray(raw), dtype=torch.uint8)
        return flat.view(kind).reshape(shape).to(self.device)

    def bits(self, tensor: Any) -> bytes:
        """As in Kit."""
        torch = self._torch
        own = tensor.detach().to("cpu").clone(memory_format=torch.contiguous_format)
        return bytes(own.reshape(-1).view(torch.uint8).numpy().tobytes())

    def describe(self, tensor: Any) -> tuple[str, tuple[int, ...], str]:
        """As in Kit."""
        dtype = str(tensor.dtype).removeprefix("torch.")
        return dtype, tuple(tensor.shape), str(tensor.device)

    def overwrite(self, tensor: Any, other: Any) -> None:
        """As in Kit."""
        tensor.copy_(other)

    def arranged(self, tensor: Any, seed: int) -> Any:
        """As in Kit: plain, every other element, first and last dimension changed, an offset."""
        torch, shape = self._torch, tuple(tensor.shape)
        empty = {"dtype": tensor.dtype, "device": tensor.device}
        if seed % 4 == 1:
            return torch.empty((*shape, 2), **empty)[..., 0].copy_(tensor)
        if seed % 4 == 2 and tensor.dim() > 1:
            return tensor.transpose(0, -1).contiguous().transpose(0, -1)
        if seed % 4 == 3:
            size = math.prod(shape)
            return torch.empty(size + 3, **empty)[3:].view(shape).copy_(tensor)
        return tensor

    def views(self) -> Hop:
        """As in Kit."""
        base = self.pattern("float32", (12, 16), 1)
        return {
            "transposed": base.t(),
            "strided": base[::3, 1::2],
            "offset": base[5:],
            "expanded": base[:, :1].expand(12, 9),
            "permuted": base.reshape(3, 4, 16).permute(2, 0, 1),
            "one element": base[0, :1],
            "one element of many": base.t()[:1, 3],
            "with gradient": base.clone().requires_grad_(),
        }

    def strangers(self) -> Mapping[str, Callable[[], Any]]:
        """As in Kit."""
        torch, good = self._torch, self.pattern("int8", (2,), 0)
        return {
            "a complex tensor": lambda: good.to(torch.complex64),
            "a sparse tensor": good.to_sparse,
            "a tensor without data": lambda: good.to("meta"),
        }
