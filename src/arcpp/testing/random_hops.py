"""Hops of random shapes, dtypes and layouts, the same on both ends for one seed."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

from arcpp.link import LinkReceiver, LinkSender

from . import watch
from .kit import Hop, Kit, kit_for
from .watch import check_same

DTYPES = (
    *("bfloat16", "float16", "float32", "int64", "float8_e4m3fn", "float8_e5m2", "bool", "uint8"),
)
_SIZES = (0.08, 0.60, 0.97)  # shares of hops: empty; up to a row or so; up to a slot; then beyond
_MOST_TENSORS = 4


def random_hops(kit: Kit, seed: int, count: int, largest: int) -> Iterator[Hop]:
    """``count`` hops of up to ``largest`` bytes and a little, most of them small."""
    chosen = random.Random(seed)  # noqa: S311 (to be repeated, not to be secret)
    for _ in range(count):
        nbytes = _size(chosen, largest)
        tensors = chosen.choice((1, 1, 2, 2, 3, _MOST_TENSORS)) if nbytes else chosen.randrange(3)
        hop = {}
        for number in range(tensors):
            dtype, made = chosen.choice(DTYPES), chosen.getrandbits(32)
            wide = max(nbytes // tensors // 8, 1) if dtype == "int64" else nbytes // tensors
            shape = _shape(chosen, wide) if nbytes else (*_shape(chosen, 8), 0)
            hop[f"t{number}"] = kit.arranged(kit.pattern(dtype, shape, made), made)
        yield hop


def send_random(sender: LinkSender, device: str, seed: int, count: int, largest: int) -> None:
    """The sending half of ``count`` random hops."""
    for hop in random_hops(kit_for(device), seed, count, largest):
        sender.send(hop, timeout=watch.PATIENCE)


def receive_random(
    receiver: LinkReceiver, device: str, seed: int, count: int, largest: int
) -> None:
    """The receiving half, which keeps a few hops to see that nothing is written into them.

    Raises AssertionError with the seed and the hop at which something differs.
    """
    kit = kit_for(device)
    kept: list[tuple[int, Hop, Hop]] = []
    chosen = random.Random(~seed)  # noqa: S311
    for number, hop in enumerate(random_hops(kit, seed, count, largest)):
        got = receiver.recv(timeout=watch.PATIENCE)
        kept.append((number, got, hop))
        while len(kept) > chosen.randrange(6):
            _compare(kit, seed, *kept.pop(chosen.randrange(len(kept))))
    for each in kept:
        _compare(kit, seed, *each)


def _compare(kit: Kit, seed: int, number: int, got: Hop, sent: Hop) -> None:
    try:
        check_same(kit, got, sent)
    except AssertionError as error:
        raise AssertionError(f"seed {seed}, hop {number}: {error}") from None


def _size(chosen: random.Random, largest: int) -> int:
    share = chosen.random()
    if share < _SIZES[0]:
        return 0
    if share < _SIZES[1]:
        return int(math.exp(chosen.uniform(0, math.log(16 << 10))))
    if share < _SIZES[2]:
        return int(math.exp(chosen.uniform(math.log(4 << 10), math.log(largest / 8))))
    return chosen.randrange(largest // 8, largest + 1)


def _shape(chosen: random.Random, size: int) -> tuple[int, ...]:
    """About ``size`` elements in one to four dimensions, at least one."""
    shape, left = [], max(size, 1)
    for _ in range(chosen.randrange(4)):
        part = chosen.randint(1, min(left, 64))
        shape.append(part)
        left = max(left // part, 1)
    return (left, *shape)
