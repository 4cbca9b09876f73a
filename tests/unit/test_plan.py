"""Plans: budgets, roles, versions, options. All sizes small enough to follow by hand."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arcpp.devices import Device, DeviceMemory
from arcpp.errors import BadInput, DoesNotFit
from arcpp.memory.placement import DROPPED
from arcpp.planner import PlanRequest, best_order, make_plan
from arcpp.profile import KvShape, Layer, ModelProfile, load_profile
from arcpp.units import GiB, MiB

from .planner_models import B70, B580, BUNDLED, QWEN35_27B, write_config

BARE = PlanRequest(margin=0, gpu_memory_utilization=1.0, max_num_batched_tokens=1, max_num_seqs=1)


def dense(layers: int = 4, weights: int = 100, **changes: Any) -> ModelProfile:
    """A dense model whose token takes 4 bytes of KV a layer."""
    layer = Layer("full_attention", weights, weights, KvShape(1, 1, 1))
    profile = ModelProfile(
        architecture="Test",
        layers=(layer,) * layers,
        roles={"embed": 50, "final_norm": 2, "lm_head": 50},
        tied=False,
        dtype="bfloat16",
        hidden_size=1,
        widths=1,
        vocab_size=1,
        max_model_len=4096,
        source="config",
    )
    return dataclasses.replace(profile, **changes)


def device(name: str, size: int, **changes: Any) -> Device:
    memory = DeviceMemory(size, changes.pop("free", size), changes.pop("reserve", 0))
    return Device(name, memory, changes.pop("bandwidth", None))


def test_layers_go_where_memory_is_exact_map() -> None:
    """Even cards get even halves; the card with the head gets no more than it can hold."""
    plan = make_plan(dense(), [device("a", 8000), device("b", 8000)], BARE)
    assert plan.partition.counts == (2, 2)
    plan = make_plan(dense(), [device("a", 16000), device("b", 6000)], BARE)
    assert plan.partition.counts == (3, 1)
    plan = make_plan(dense(), [device("a", 6000), device("b", 16000)], BARE)
    assert plan.partition.counts == (1, 3)


def test_every_byte_is_accounted_for() -> None:
    plan = make_plan(dense(), [device("a", 9000, reserve=1000), device("b", 9000)], BARE)
    first, last = plan.stages
    assert first.weights_bytes == first.high * 100 + 50
    assert last.weights_bytes == (last.high - last.low) * 100 + 52
    assert first.roles == ("embed",)
    assert last.roles == ("final_norm", "lm_head")
    assert first.reserve_bytes == 1000
    for stage in plan.stages:
        assert stage.kv_bytes == plan.num_blocks * stage.bytes_per_block
        kept = stage.reserve_bytes + stage.margin_bytes + stage.total_bytes
        assert stage.unused_bytes == stage.free_bytes - kept >= 0
    assert plan.num_blocks == min(stage.num_blocks for stage in plan.stages)
    assert plan.stages[plan.binding_stage].num_blocks == plan.num_blocks


def test_stages_on_one_device_share_its_budget() -> None:
    card = device("a", 20000)
    plan = make_plan(dense(), [card, card], BARE)
    assert sum(stage.total_bytes for stage in plan.stages) <= 20000
    assert plan.stages[0].unused_bytes == plan.stages[1].unused_bytes >= 0
    alone = make_plan(dense(), [card], BARE)
    assert plan.num_blocks <= alone.num_blocks


def test_free_memory_and_reserve_count_not_the_total() -> None:
    """Two equal cards, one drives the desktop."""
    profile, a = dense(8), device("a", 9000)
    even = make_plan(profile, [a, device("b", 9000)], BARE)
    assert even.partition.counts == (4, 4)
    request = dataclasses.replace(BARE, reserves={"b": 4000})
    kept = make_plan(profile, [a, device("b", 9000)], request)
    busy = make_plan(profile, [a, device("b", 9000, free=5000)], BARE)
    assert kept.partition == busy.partition
    assert kept.partition.counts[1] < 4


def test_utilization_bounds_the_budget_by_the_total() -> None:
    request = dataclasses.replace(BARE, gpu_memory_utilization=0.5)
    half = make_plan(dense(), [device("a", 20000)], request)
    whole = make_plan(dense(), [device("a", 10000)], BARE)
    assert half.num_blocks == whole.num_blocks


def test_tied_embedding_is_counted_once_on_one_stage_and_copied_on_two() -> None:
    profile = dense(roles={"embed": 50, "final_norm": 2}, tied=True)
    alone = make_plan(profile, [device("a", 9000)], BARE)
    assert alone.stages[0].weights_bytes == 4 * 100 + 52
    two = make_plan(profile, [device("a", 9000), device("b", 9000)], BARE)
    assert two.stages[1].roles == ("final_norm", "lm_head")
    assert sum(stage.weights_bytes for stage in two.stages) == 4 * 100 + 102


def test_duplicates_of_stock_vllm_are_counted_unless_dropped() -> None:
    profile = dense(duplicates=frozenset({"embed", "lm_head"}))
    cards = [device("a", 9000), device("b", 9000)]
    stock = make_plan(profile, cards, dataclasses.replace(BARE, dropped_roles=frozenset()))
    ours = make_plan(profile, cards, dataclasses.replace(BARE, dropped_roles=DROPPED))
    assert [stage.roles for stage in stock.stages] == [
        ("embed", "lm_head"),
        ("embed", "final_norm", "lm_head"),
    ]
    assert sum(s.weights_bytes for s in stock.stages) - 100 == sum(
        s.weights_bytes for s in ours.stages
    )


def test_drafts_keep_the_embedding_on_the_last_stage() -> None:
    profile = load_profile(BUNDLED)
    cards = [device("a", 256 * MiB), device("b", 256 * MiB)]
    drafts = PlanRequest(spec_tokens=2, prefix_caching=False, dropped_roles=DROPPED)
    plan = make_plan(profile, cards, drafts)
    assert plan.stages[1].roles == ("embed", "final_norm", "lm_head", "mtp")
    without = make_plan(profile, cards, PlanRequest(dropped_roles=DROPPED))
    assert without.stages[1].roles == ("final_norm", "lm_head")


def test_two_plans_of_one_request_are_equal_and_order_of_mappings_is_irrelevant() -> None:
    cards = [device("a", 9000), device("b", 9000)]
    one = dataclasses.replace(BARE, reserves={"a": 10, "b": 20})
    two = dataclasses.replace(BARE, reserves={"b": 20, "a": 10})
    profile = dense()
    turned = dense(roles=dict(reversed(profile.roles.items())))
    assert make_plan(profile, cards, one) == make_plan(turned, cards, two)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(500, 9000), min_size=1, max_size=4),
    st.lists(st.integers(0, 300), min_size=4, max_size=9),
)
def test_a_plan_never_exceeds_a_budget(sizes: list[int], weights: list[int]) -> None:
    layers = tuple(Layer("full_attention", w, w, KvShape(1, 1, 1)) for w in weights)
    cards = [device(f"d{i}", size) for i, size in enumerate(sizes)]
    try:
        plan = make_plan(dataclasses.replace(dense(), layers=layers), cards, BARE)
    except DoesNotFit:
        return
    assert all(stage.unused_bytes >= 0 for stage in plan.stages)
    assert sum(plan.partition.counts) == len(layers)


def test_equal_plans_prefer_cuts_on_the_period_then_the_earlier_device() -> None:
    profile = load_profile(BUNDLED)
    cards = [device("a", 2 * GiB), device("b", 2 * GiB)]
    plan = make_plan(profile, cards, PlanRequest(kv_memory=(MiB * 64,)))
    assert plan.partition.counts == (4, 4)


def test_faster_card_gets_more_for_the_goal_decode() -> None:
    cards = [device("a", 9000, bandwidth=100.0), device("b", 9000, bandwidth=400.0)]
    context = make_plan(dense(), cards, BARE)
    request = dataclasses.replace(BARE, maximize="decode", max_model_len=16)
    decode = make_plan(dense(), cards, request)
    assert decode.partition.counts == (1, 3)
    assert context.kv_cache_tokens >= decode.kv_cache_tokens
    assert decode.decode_tokens_per_s_limit is not None
    assert context.decode_tokens_per_s_limit is not None
    assert decode.decode_tokens_per_s_limit > context.decode_tokens_per_s_limit


def test_concurrency_asks_for_no_more_blocks_than_the_requests_need() -> None:
    cards = [device("a", 9000, bandwidth=100.0), device("b", 9000, bandwidth=400.0)]
    request = dataclasses.replace(BARE, maximize="concurrency", max_num_seqs=2, max_model_len=16)
    plan = make_plan(dense(), cards, request)
    assert plan.max_num_seqs == 2
    assert plan.partition.counts == (1, 3)


def test_reorder_finds_the_better_order() -> None:
    """The head is large: it belongs on the larger card."""
    profile = dense(roles={"embed": 5, "final_norm": 0, "lm_head": 3000})
    cards = [device("big", 9000), device("small", 2500)]
    with pytest.raises(DoesNotFit):
        make_plan(profile, cards, BARE)
    order = best_order(profile, cards, BARE)
    assert [card.name for card in order] == ["small", "big"]
    assert make_plan(profile, order, BARE).num_blocks > 0


@pytest.mark.parametrize(
    ("version", "usable"), [("0.28.0", 12), ("0.29.0", 11), ("0.32.0+cpu", 11), ("0.33", 11)]
)
def test_null_block_is_left_out_where_the_version_does(version: str, usable: int) -> None:
    request = PlanRequest(version=version, kv_memory=(12 * 16 * 4 * 4,), block_size=16)
    plan = make_plan(dense(), [device("a", GiB)], request)
    assert plan.num_blocks == 12
    assert plan.max_model_len == usable * 16


@pytest.mark.parametrize(("version", "state"), [("0.25", 3), ("0.26", 6), ("0.33", 6)])
def test_default_of_prefix_caching_changed_for_hybrids(version: str, state: int) -> None:
    plan = make_plan(load_profile(BUNDLED), [device("a", GiB)], PlanRequest(version=version))
    assert plan.state_blocks_per_request == state


def test_log_of_0_20_counts_blocks_over_groups(tmp_path: Path) -> None:
    profile = load_profile(write_config(tmp_path, QWEN35_27B))
    request = PlanRequest(
        version="0.20", kv_memory=(1200 * MiB,), kv_cache_dtype="fp8", max_model_len=8192
    )
    plan = make_plan(profile, [B70, B580], request)
    assert plan.kv_cache_tokens == plan.num_blocks // 4 * plan.block_tokens


def test_refusal_names_stage_lack_and_a_setting_that_fits() -> None:
    profile = load_profile(BUNDLED)
    cards = [device("a", 48 * MiB), device("b", 48 * MiB)]
    with pytest.raises(DoesNotFit) as caught:
        make_plan(profile, cards, PlanRequest(max_model_len=32768))
    error = caught.value
    assert error.device in ("a", "b")
    assert error.missing_bytes > 0
    assert error.nearest is not None
    length = int(error.nearest.removeprefix("--max-model-len "))
    assert make_plan(profile, cards, PlanRequest(max_model_len=length)).max_model_len == length
    with pytest.raises(DoesNotFit):
        make_plan(profile, cards, PlanRequest(max_model_len=length + 1))


def test_lack_is_exact_for_a_given_partition() -> None:
    request = dataclasses.replace(BARE, max_model_len=16, partition=(2, 2))
    cards = [device("a", 5000), device("b", 100)]
    with pytest.raises(DoesNotFit) as caught:
        make_plan(dense(), cards, request)
    missing = caught.value.missing_bytes
    assert caught.value.stage == 1
    enough = [device("a", 5000), device("b", 100 + missing)]
    assert make_plan(dense(), enough, request).partition.counts == (2, 2)
    short = [device("a", 5000), device("b", 100 + missing - 1)]
    with pytest.raises(DoesNotFit):
        make_plan(dense(), short, request)


@pytest.mark.parametrize(
    "changes",
    [
        {"host": "llama.cpp"},
        {"maximize": "fun"},
        {"margin": -1},
        {"max_num_seqs": 0},
        {"spec_tokens": -1},
        {"spec_tokens": 1},
        {"block_size": 0},
        {"mamba_cache_mode": "some"},
        {"platform": "tpu"},
        {"version": "1.0"},
        {"partition": (5,)},
        {"kv_memory": (1, 2, 3)},
        {"max_model_len": 5000},
        {"max_model_len": True},
    ],
)
def test_wrong_requests_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        make_plan(dense(), [device("a", GiB)], PlanRequest(**changes))


def test_broken_devices_are_refused() -> None:
    for memory in (DeviceMemory(0, 0), DeviceMemory(10, 0), DeviceMemory(10, 11)):
        with pytest.raises(BadInput):
            make_plan(dense(), [Device("a", memory)], BARE)
    with pytest.raises(BadInput):
        make_plan(dense(), [], BARE)
    with pytest.raises(BadInput):
        make_plan(dense(), [device(f"d{i}", GiB) for i in range(5)], BARE)
    with pytest.raises(BadInput):
        make_plan(dense(), [device("a", GiB), device("a", 2 * GiB)], BARE)


def test_stage_without_full_attention_is_planned_with_the_global_block() -> None:
    profile = load_profile(BUNDLED)
    request = PlanRequest(partition=(1, 7), platform="cpu")
    cards = [device("a", GiB), device("b", GiB)]
    plan = make_plan(profile, cards, request)
    whole = make_plan(profile, [device("a", GiB)], PlanRequest(platform="cpu"))
    assert plan.block_tokens == whole.block_tokens
    assert plan.stages[0].bytes_per_block * 2 == plan.stages[1].bytes_per_block


def test_warns_where_one_allocation_is_more_than_the_card_allows(tmp_path: Path) -> None:
    profile = load_profile(write_config(tmp_path, QWEN35_27B), weights_dtype="int4")
    cards = [device("A770", 20 * GiB), device("A770 2", 20 * GiB)]
    plan = make_plan(profile, cards, PlanRequest())
    assert sum("4 GiB or more" in warning for warning in plan.warnings) == 2
    for other in (PlanRequest(version="0.28"), PlanRequest(max_num_seqs=1, kv_memory=(GiB,))):
        warnings = make_plan(profile, cards, other).warnings
        assert not any("4 GiB or more" in warning for warning in warnings)
    big = [device("B70", 30 * GiB), device("B70 2", 30 * GiB)]
    assert not any("4 GiB" in w for w in make_plan(profile, big, PlanRequest()).warnings)


def test_warns_of_the_image_that_vllm_tries_at_start(tmp_path: Path) -> None:
    profile = load_profile(write_config(tmp_path, QWEN35_27B), weights_dtype="int4")
    cards = [device("B70", 30 * GiB)]
    assert any(
        "1.33 GiB" in warning for warning in make_plan(profile, cards, PlanRequest()).warnings
    )
    on_cpu = [device("cpu:0", 64 * GiB)]
    assert not make_plan(profile, on_cpu, PlanRequest()).warnings


def test_warns_of_drafts_with_prefix_caching_and_prints_the_host_option() -> None:
    profile = load_profile(BUNDLED)
    cards = [device("cpu:0", GiB)]
    plan = make_plan(profile, cards, PlanRequest(spec_tokens=3))
    assert any("corrupts" in warning for warning in plan.warnings)
    assert '"num_speculative_tokens": 3' in plan.host_args[-1]
    quiet = make_plan(profile, cards, PlanRequest(spec_tokens=3, prefix_caching=False))
    assert not quiet.warnings
    assert "--no-enable-prefix-caching" in quiet.host_args


@pytest.mark.parametrize(
    ("partition", "caching", "logged"),
    [((8,), False, 47_662), ((4, 4), True, 74_898), ((5, 3), True, 37_449)],
)
def test_tokens_are_those_that_real_starts_logged(
    partition: tuple[int, ...], caching: bool, logged: int
) -> None:
    """vLLM 0.32.0 on CPU, bundled model, --max-model-len 2048, 64 MiB of KV memory a rank."""
    request = PlanRequest(
        version="0.32.0+cpu",
        partition=partition,
        kv_memory=(64 * MiB,),
        max_model_len=2048,
        prefix_caching=caching,
    )
    cards = [device(f"cpu:{index}", 8 * GiB) for index in range(len(partition))]
    assert make_plan(load_profile(BUNDLED), cards, request).kv_cache_tokens == logged


@pytest.mark.parametrize(
    ("request_changes", "block"),
    [
        ({"platform": "cpu"}, 128),
        ({"platform": "cuda"}, 16),
        ({"platform": "xpu"}, 64),
        ({"platform": "xpu", "dtype": "float32"}, 16),
        ({"platform": "xpu", "block_size": 48}, 48),
        ({}, 64),
    ],
)
def test_default_block_follows_the_platform(request_changes: dict[str, Any], block: int) -> None:
    plan = make_plan(dense(), [device("a", GiB)], PlanRequest(**request_changes))
    assert plan.block_tokens == block


def test_hybrid_block_grows_to_hold_a_state_and_is_aligned_on_xpu(tmp_path: Path) -> None:
    """27B with fp8 KV: a state of 3,207,168 bytes over 2048 bytes a token is 1566 tokens."""
    profile = load_profile(write_config(tmp_path, QWEN35_27B), weights_dtype="int4")
    blocks = {}
    for name, request in {
        "xpu": PlanRequest(kv_cache_dtype="fp8", block_size=16, version="0.23"),
        "unaligned": PlanRequest(
            kv_cache_dtype="fp8", block_size=16, block_align=1, version="0.23"
        ),
        "cpu": PlanRequest(kv_cache_dtype="fp8", platform="cpu"),
    }.items():
        plan = make_plan(profile, [device("a", 60 * GiB)], request)
        blocks[name] = plan.block_tokens
        assert plan.stages[0].bytes_per_block == 16 * plan.block_tokens * 2048
    assert blocks == {"xpu": 1600, "unaligned": 1568, "cpu": 1664}
