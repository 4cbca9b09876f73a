"""KV tokens of six real pairs and four models under three other splits and under arcpp.

Every split is evaluated with the same exact arithmetic (vLLM's newest rules known to arcpp);
"-" means that it does not fit. All with float16 activations, an fp8 KV cache, at most 16 requests
and the model's whole length. That an A770 refuses single allocations of 4 GiB is not applied:
`arcpp plan` warns of it and says which options make the pools fit. vLLM itself runs no stage on a
processor beside cards: the pair with a CPU shows what most KV tokens first does there, of which a
plan warns.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from arcpp.devices import Device, DeviceMemory
from arcpp.errors import DoesNotFit
from arcpp.partition import Partition, even_split, proportional_split
from arcpp.planner import PlanRequest, make_plan
from arcpp.profile import ModelProfile, load_profile
from arcpp.units import GiB, MiB
from tests.unit import planner_models as models

A770 = ("A770", int(15.11 * GiB), 560.0)
B580 = ("B580", 11605 * MiB, 456.0)
B60 = ("B60", 24 * GiB - 700 * MiB, 456.0)
B70 = ("B70", 31023 * MiB, 608.0)
CPU = ("CPU", 64 * GiB, 60.0)
PAIRS = {
    "B70 + B580": (B70, B580),
    "2x A770": (A770, A770),
    "2x B580": (B580, B580),
    "B60 + A770": (B60, A770),
    "3x B580": (B580, B580, B580),
    "A770 + CPU": (A770, CPU),
}
MODELS = {
    "27B fp8": ("QWEN35_27B", "fp8"),
    "27B int4": ("QWEN35_27B", "int4"),
    "35B-A3B int4": ("QWEN35_35B", "int4"),
    "70B int4": ("LLAMA_70B", "int4"),
}


def devices(cards: Sequence[tuple[str, int, float]]) -> list[Device]:
    return [
        Device(f"{name} {index}", DeviceMemory(size, size), speed)
        for index, (name, size, speed) in enumerate(cards)
    ]


def balanced_split(profile: ModelProfile, cards: Sequence[Device]) -> Partition | None:
    """accelerate's balanced map (utils/modeling.py get_balanced_memory, then in order).

    Every card but the last is given the average plus 1.25 layers; weights only are counted.
    """
    sizes = [layer.weights_bytes for layer in profile.layers]
    share = profile.weights_bytes // len(cards) + int(1.25 * max(sizes))
    room = [min(card.memory.free, share) for card in cards[:-1]] + [cards[-1].memory.free]
    room[0] -= profile.roles["embed"] + profile.roles.get("vision", 0)
    counts, card = [0] * len(cards), 0
    for size in sizes:
        while card < len(cards) - 1 and room[card] < size:
            card += 1
        if room[card] < size:
            return None
        room[card] -= size
        counts[card] += 1
    return Partition(tuple(counts)) if all(counts) else None


def tokens(
    profile: ModelProfile, cards: list[Device], request: PlanRequest, split: Partition | None
) -> int:
    """KV tokens, 0 where the split does not fit."""
    if split is None:
        return 0
    try:
        return make_plan(profile, cards, replace(request, partition=split.counts)).kv_cache_tokens
    except DoesNotFit:
        return 0


def table() -> list[str]:
    """The table as markdown lines."""
    request = PlanRequest(kv_cache_dtype="fp8", dtype="float16", max_num_seqs=16)
    lines = [
        "| cards | model | even | balanced | by memory | arcpp | split | over the best other |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for pair, cards in PAIRS.items():
        for label, (name, weights) in MODELS.items():
            profile, here = profile_of(name, weights), devices(cards)
            layers = len(profile.layers)
            others = [
                tokens(profile, here, request, split)
                for split in (
                    even_split(layers, len(here)),
                    balanced_split(profile, here),
                    proportional_split(layers, [card.memory.total for card in here]),
                )
            ]
            try:
                plan = make_plan(profile, here, request)
                ours, split = plan.kv_cache_tokens, str(plan.partition)
            except DoesNotFit:
                ours, split = 0, "-"
            ratio = f"{ours / max(others):.2f}" if max(others) else ("only" if ours else "-")
            shown = [f"{value:,}" if value else "-" for value in (*others, ours)]
            lines.append(f"| {pair} | {label} | {' | '.join(shown)} | {split} | {ratio} |")
    return lines


def profile_of(name: str, weights: str) -> ModelProfile:
    """Profile of the config called ``name`` in tests/unit/planner_models.py."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(getattr(models, name)), encoding="utf-8")
        return load_profile(path, weights_dtype=weights, dtype="float16")
