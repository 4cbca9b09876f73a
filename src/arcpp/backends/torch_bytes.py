"""A tensor's bytes, whatever its strides."""

from __future__ import annotations

import torch


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor's contiguous bytes, one-dimensional; a copy only where it is not contiguous.

    A tensor of one element is contiguous with any stride, and a view of another element size is
    not: a row of a batch of one, say.
    """
    flat = tensor.detach().contiguous().reshape(-1)
    if flat.stride(0) != 1:
        flat = flat.as_strided(flat.shape, (1,))
    return flat.view(torch.uint8)
