"""A 64-bit checksum of a tensor's bytes, taken where the tensor lies, the same on every device.

Bytes are read as 64-bit words; the checksum is the sum of every word times its weight, modulo
2**64. Integer sums wrap the same everywhere and in any order. Every weight is odd: a single wrong
word, whatever the error, always changes the sum. Weights are pseudo-random, so that words that
moved change it too, except once in about 2**63. A small tensor has a weight for each word; a large
one is a table, whose weights are a row's (odd) plus a column's (even), so that it is read twice
and nothing of its size is made.
"""

from __future__ import annotations

import functools

import torch

from .torch_bytes import as_bytes

_COLUMNS = 512
_SMALL_WORDS = 1 << 17  # a weight each: two kernels instead of eight, for at most 1 MiB of them
_MASK = 2**64 - 1


def checksum(tensor: torch.Tensor) -> torch.Tensor:
    """Checksum of ``tensor``'s contiguous bytes, a 0-dimensional int64 tensor on its device."""
    flat = as_bytes(tensor)
    place, size = flat.device, flat.numel()
    if flat.storage_offset() % 8:
        flat = flat.clone()
    words = flat[: size - size % 8].view(torch.int64)
    total = _small(words) if words.numel() <= _SMALL_WORDS else _large(words)
    total = total + size
    if size % 8:
        tail = flat[size - size % 8 :].to(torch.int64)
        total += (tail * _weights(8, 5, place)[: tail.numel()]).sum()
    return total


def _small(words: torch.Tensor) -> torch.Tensor:
    return (words * _weights(words.numel(), 1, words.device)).sum()


def _large(words: torch.Tensor) -> torch.Tensor:
    rows, place = words.numel() // _COLUMNS, words.device
    table = words[: rows * _COLUMNS].view(rows, _COLUMNS)
    odd, even = _weights(rows, 1, place), _weights(_COLUMNS, 0, place)
    total = (table.sum(dim=1) * odd).sum() + (table.sum(dim=0) * even).sum()
    left = words[rows * _COLUMNS :]
    return total + (left * _weights(_COLUMNS, 3, place)[: left.numel()]).sum()


@functools.lru_cache(maxsize=64)
def _rounded(count: int, seed: int, place: torch.device) -> torch.Tensor:
    """``count`` pseudo-random 64-bit weights, odd where seed is (splitmix64)."""
    index = torch.arange(count, dtype=torch.int64) + (seed + 1) * 0x632BE59B
    mixed = index * _signed(0x9E3779B97F4A7C15)
    mixed = (mixed ^ _shifted(mixed, 30)) * _signed(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ _shifted(mixed, 27)) * _signed(0x94D049BB133111EB)
    mixed = mixed ^ _shifted(mixed, 31)
    return ((mixed & ~1) | (seed & 1)).to(place)


def _weights(count: int, seed: int, place: torch.device) -> torch.Tensor:
    """The first ``count`` weights; kept for a power of two of them."""
    return _rounded(1 << max(count - 1, 0).bit_length(), seed, place)[:count]


def _shifted(words: torch.Tensor, by: int) -> torch.Tensor:
    """Logical shift to the right: torch's is arithmetic."""
    return (words >> by) & ((1 << (64 - by)) - 1)


def _signed(word: int) -> int:
    return word - 2**64 if word > _MASK >> 1 else word
