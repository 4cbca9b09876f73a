"""What holds for every plan: budgets, more memory, and the order in which things are written."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arcpp.devices import Device, DeviceMemory
from arcpp.errors import DoesNotFit
from arcpp.plan import Plan
from arcpp.planner import PlanRequest, make_plan
from arcpp.profile import ModelProfile, load_profile
from arcpp.profile.build import from_config, from_tensors
from arcpp.profile.readers import read_checkpoint
from arcpp.units import MiB

from .planner_models import (
    BUNDLED,
    GEMMA4,
    GPT_OSS,
    GRANITE,
    LLAMA_8B,
    NEMOTRON,
    QWEN3_30B,
    QWEN3_NEXT,
    QWEN35_27B,
)

FAMILIES = {"gpt-oss": GPT_OSS, "gemma": GEMMA4, "granite": GRANITE, "llama": LLAMA_8B}


@cache
def profile_of(name: str) -> ModelProfile:
    """Of the bundled hybrid, or of a family with fewer and narrower layers."""
    if name == "bundled":
        return load_profile(BUNDLED)
    config = {
        **FAMILIES[name], "num_hidden_layers": 10, "hidden_size": 64, "intermediate_size": 64,
        "vocab_size": 256, "num_local_experts": 4, "num_experts_per_tok": 2,
        "max_position_embeddings": 2048,
    }  # fmt: skip
    if "layer_types" in config:
        config["layer_types"] = config["layer_types"][:10]
    return from_config(config, name, None, None)


@st.composite
def problems(draw: st.DrawFn) -> tuple[str, list[Device], PlanRequest]:
    model = draw(st.sampled_from(["bundled", *FAMILIES]))
    cards, count = [], draw(st.integers(1, 4))
    for index in range(count):
        free = draw(st.integers(8, 400)) * MiB
        total = free + draw(st.integers(0, 100)) * MiB
        reserve = draw(st.sampled_from([0, 0, 3 * MiB]))
        name = draw(st.sampled_from(["a", "b", "cpu", f"d{index}"]))
        known = next((card for card in cards if card.name == name), None)
        cards.append(known or Device(name, DeviceMemory(total, free, reserve)))
    request = PlanRequest(
        host=draw(st.sampled_from(["vllm", "openvino"])),
        margin=draw(st.sampled_from([None, 0, 5 * MiB])),
        gpu_memory_utilization=draw(st.sampled_from([None, 0.5, 1.0])),
        reserves={cards[0].name: draw(st.integers(0, 9)) * MiB},
        max_num_batched_tokens=draw(st.sampled_from([64, 256])),
        max_num_seqs=draw(st.sampled_from([1, 8])),
        max_model_len=draw(st.sampled_from([None, 100, 2048])),
        maximize=draw(st.sampled_from(["context", "context", "concurrency", "decode"])),
        large_allocations=draw(st.booleans()),
        brief=True,
    )
    return model, cards, request


def planned(model: str, cards: list[Device], request: PlanRequest) -> Plan | None:
    try:
        return make_plan(profile_of(model), cards, request)
    except DoesNotFit:
        return None


def room(card: Device, request: PlanRequest) -> int:
    """What may be used of ``card``, written down again from the contract."""
    memory, margin = card.memory, request.margin
    if margin is None:
        margin = min(256 * MiB, memory.total // 32)
    left = memory.free - memory.reserve - request.reserves.get(card.name, 0) - margin
    if request.host == "openvino":
        return left
    return min(left, math.ceil(memory.total * (request.gpu_memory_utilization or 0.92)))


@settings(max_examples=250, deadline=None)
@given(problems())
def test_no_device_is_given_more_than_may_be_used_of_it(
    problem: tuple[str, list[Device], PlanRequest],
) -> None:
    model, cards, request = problem
    plan = planned(model, cards, request)
    if plan is None:
        return
    assert [stage.device for stage in plan.stages] == [card.name for card in cards]
    for card in cards:
        stages = [stage for stage in plan.stages if stage.device == card.name]
        for stage in stages:
            parts = stage.weights_bytes + stage.kv_bytes + stage.state_bytes
            assert stage.total_bytes == parts + stage.workspace_bytes
        assert sum(stage.total_bytes for stage in stages) <= room(card, request)
    assert plan.partition.counts == tuple(stage.high - stage.low for stage in plan.stages)
    assert sum(plan.partition.counts) == len(profile_of(model).layers)
    assert plan.max_model_len >= plan.effective_len >= 1


@settings(max_examples=250, deadline=None)
@given(problems(), st.integers(0, 3), st.integers(1, 200), st.booleans())
def test_more_memory_never_gives_fewer_tokens_or_a_shorter_request(
    problem: tuple[str, list[Device], PlanRequest], which: int, more: int, total: bool
) -> None:
    """On any device: more that is free of it, or a larger one."""
    model, cards, request = problem
    request = replace(request, maximize="context")
    before = planned(model, cards, request)
    if before is None:
        return
    old = cards[which % len(cards)]
    room = old.memory.total - old.memory.free
    added = more * MiB if total else min(more * MiB, room)
    memory = replace(
        old.memory,
        total=old.memory.total + (added if total else 0),
        free=old.memory.free + added,
    )
    larger = [replace(card, memory=memory) if card.name == old.name else card for card in cards]
    after = planned(model, larger, request)
    assert after is not None
    assert after.num_blocks >= before.num_blocks
    assert after.max_model_len >= before.max_model_len
    assert after.kv_cache_tokens >= before.kv_cache_tokens


def shuffled(value: Any, rng: random.Random) -> Any:
    """``value`` with the keys of every object in another order."""
    if isinstance(value, dict):
        keys = list(value)
        rng.shuffle(keys)
        return {key: shuffled(value[key], rng) for key in keys}
    return value


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "config",
    [LLAMA_8B, QWEN3_30B, QWEN35_27B, QWEN3_NEXT, GPT_OSS, GEMMA4, NEMOTRON, GRANITE],
    ids=lambda config: config["architectures"][0],
)
def test_the_order_of_keys_in_a_config_is_irrelevant(config: dict[str, Any], seed: int) -> None:
    other = shuffled(config, random.Random(seed))
    assert list(other) != list(config)
    assert from_config(other, "x", "int4", None) == from_config(config, "x", "int4", None)


@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_tensors_in_headers_is_irrelevant(seed: int) -> None:
    config = json.loads((Path(BUNDLED) / "config.json").read_text("utf-8"))
    tensors = list(read_checkpoint(BUNDLED))
    random.Random(seed).shuffle(tensors)
    assert from_tensors(config, "x", tensors, None) == load_profile(BUNDLED)
