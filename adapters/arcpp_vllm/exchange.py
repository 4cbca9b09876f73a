"""Small facts that all stages must know of each other, exchanged as JSON over gloo."""

from __future__ import annotations

import json
from typing import Any

import torch
import torch.distributed as dist
from vllm.distributed.parallel_state import get_world_group


def gather(fact: Any) -> list[Any]:
    """Every stage's ``fact`` (anything JSON can say), in rank order, the same on all ranks.

    Collective: all ranks call it at the same point. No pickle, unlike all_gather_object.
    """
    group = get_world_group().cpu_group
    mine = torch.frombuffer(bytearray(json.dumps(fact).encode()), dtype=torch.uint8)
    world = dist.get_world_size(group)
    sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(world)]
    dist.all_gather(sizes, torch.tensor([mine.numel()]), group=group)
    longest = int(max(size.item() for size in sizes))
    padded = torch.zeros(longest, dtype=torch.uint8)
    padded[: mine.numel()] = mine
    texts = [torch.zeros(longest, dtype=torch.uint8) for _ in range(world)]
    dist.all_gather(texts, padded, group=group)
    return [
        json.loads(text[: int(size.item())].numpy().tobytes())
        for text, size in zip(texts, sizes, strict=True)
    ]
