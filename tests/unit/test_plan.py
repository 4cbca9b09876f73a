"""Plans: budgets, roles, versions, options. All sizes small enough to follow by hand."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arcpp.costs import assumed_bandwidths
from arcpp.devices import AllocationLimit, Device, DeviceMemory
from arcpp.errors import BadInput, DoesNotFit
from arcpp.memory.placement import DROPPED
from arcpp.partition import Partition
from arcpp.planner import PlanRequest, make_plan
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


def test_stages_on_one_device_are_balanced_where_nothing_else_decides() -> None:
    """The slowest stage, head included, as small as can be; then the earlier one gets more."""
    card = device("cpu", GiB)
    assert make_plan(dense(30), [card, card], BARE).partition.counts == (15, 15)
    heavy = dense(30, roles={"embed": 50, "final_norm": 0, "lm_head": 450})
    assert make_plan(heavy, [card, card], BARE).partition.counts == (17, 13)
    assert make_plan(dense(31), [card, card], BARE).partition.counts == (16, 15)
    assert make_plan(dense(7), [card] * 3, BARE).partition.counts == (3, 3, 1)


def test_stages_that_take_turns_on_devices_too_often_are_refused_in_bounded_time() -> None:
    profile = dense(96)
    cards = [device(name, GiB) for name in "abc"] * 3
    with pytest.raises(BadInput, match="one after the other"):
        make_plan(profile, cards, BARE)
    given = dataclasses.replace(BARE, partition=(10,) * 8 + (16,))
    assert make_plan(profile, cards, given).num_blocks > 0
    side_by_side = sorted(cards, key=lambda card: card.name)
    assert make_plan(profile, side_by_side, BARE).num_blocks > 0


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
    request = dataclasses.replace(
        BARE, maximize="concurrency", max_num_seqs=2, max_num_batched_tokens=2, max_model_len=16
    )
    plan = make_plan(dense(), cards, request)
    assert plan.max_num_seqs == 2
    assert plan.partition.counts == (1, 3)


@pytest.mark.parametrize(
    ("inside", "advice"),
    [(False, "nearest that fits: without --reserve"), (True, "fits: without the setting reserve")],
)
def test_advice_names_what_the_reader_can_set(inside: bool, advice: str) -> None:
    request = dataclasses.replace(
        BARE, reserves={"a": 8900}, inside_host=inside, kv_cache_dtype="float16", max_num_seqs=1,
        max_num_batched_tokens=1, gpu_memory_utilization=1.0,
    )  # fmt: skip
    with pytest.raises(DoesNotFit) as caught:
        make_plan(dense(), [device("a", 9000)], request)
    assert str(caught.value).endswith(advice)


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


def test_refusal_of_a_shared_device_names_its_last_stage() -> None:
    card = device("a", 600)
    with pytest.raises(DoesNotFit) as caught:
        make_plan(dense(), [card, card], BARE)
    assert caught.value.stage == 1


def test_decode_reads_what_a_token_reads() -> None:
    """Of 100 bytes a layer a token reads 30 (experts), and lm_head and final norm at the end."""
    layer = Layer("full_attention", 100, 30, KvShape(1, 1, 1))
    profile = dataclasses.replace(dense(), layers=(layer,) * 4)
    request = dataclasses.replace(BARE, partition=(3, 1))
    cards = [device("a", 9000, bandwidth=1e-6), device("b", 9000, bandwidth=2e-6)]
    plan = make_plan(profile, cards, request)
    assert plan.decode_tokens_per_s_limit == round(1 / (90 / 1000 + (30 + 52) / 2000), 2)


def test_each_running_request_has_a_block_and_the_null_block_is_nobodys() -> None:
    for version, most in (("0.28", 12), ("0.32", 11)):
        request = PlanRequest(version=version, kv_memory=(12 * 16 * 4 * 4,), block_size=16)
        assert make_plan(dense(), [device("a", GiB)], request).max_num_seqs == most


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
    found = [warning for warning in plan.warnings if "one allocation of 8.79 GiB" in warning]
    assert len(found) == 2
    advice = re.search(
        r"--kv-cache-memory-bytes (\d+) --max-model-len (\d+) .* ([\d,]+) KV", found[1]
    )
    assert advice is not None
    memory, length, tokens = (int(part.replace(",", "")) for part in advice.groups())
    followed = PlanRequest(kv_memory=(memory,), max_model_len=length, partition=(32, 32))
    after = make_plan(profile, cards, followed)
    assert after.kv_cache_tokens == tokens
    assert not any("one allocation" in warning for warning in after.warnings)
    for other in (PlanRequest(version="0.28"), PlanRequest(max_num_seqs=1, kv_memory=(GiB,))):
        warnings = make_plan(profile, cards, other).warnings
        assert not any("one allocation" in warning for warning in warnings)
    big = [device("B70", 30 * GiB), device("B70 2", 30 * GiB)]
    assert not any("allocation" in w for w in make_plan(profile, big, PlanRequest()).warnings)


def test_warns_of_what_a_probed_card_allows_at_once(tmp_path: Path) -> None:
    """The name xpu:0 says nothing of the card: the driver's limit travels in the device."""
    profile = load_profile(write_config(tmp_path, QWEN35_27B), weights_dtype="int4")
    limit = AllocationLimit(2 * GiB, "its driver")
    memory = DeviceMemory(30 * GiB, 30 * GiB)
    cards = [Device("xpu:0", memory, None, limit), Device("xpu:1", memory)]
    warnings = make_plan(profile, cards, PlanRequest()).warnings
    assert sum(warning.startswith("xpu:0: embed is one allocation of 2.37") for warning in warnings)
    assert sum("xpu:0: vllm@0.33 makes one allocation" in warning for warning in warnings) == 1
    assert not any(warning.startswith("xpu:1") for warning in warnings)


@pytest.mark.parametrize(
    ("version", "piece"), [("0.28", 2 * 512 * 4 * 16), ("0.33", 3 * 2 * 512 * 4 * 16)]
)
def test_pool_is_one_allocation_or_one_per_layer_by_version(version: str, piece: int) -> None:
    layer = Layer("full_attention", 100, 100, KvShape(2, 512, 512))
    profile = dense(layers=3)
    profile = dataclasses.replace(profile, layers=(layer,) * 3)
    memory = DeviceMemory(GiB, GiB)
    request = dataclasses.replace(BARE, version=version, platform="cuda")
    for size, warned in ((piece * 10 - 1, True), (piece * 10, False)):
        card = Device("xpu:0", memory, None, AllocationLimit(size, "test"))
        given = dataclasses.replace(request, kv_memory=(10 * 3 * 2 * 512 * 4 * 16,))
        plan = make_plan(profile, [card], given)
        assert plan.num_blocks == 10
        found = [warning for warning in plan.warnings if "one allocation" in warning]
        assert bool(found) is warned
        if warned:
            advised = int(found[0].split("--kv-cache-memory-bytes ")[1].split()[0])
            less = make_plan(profile, [card], dataclasses.replace(given, kv_memory=(advised,)))
            assert less.num_blocks == 9
            assert not any("one allocation" in warning for warning in less.warnings)


def test_a_processor_beside_cards_is_never_silently_slow(tmp_path: Path) -> None:
    profile = load_profile(write_config(tmp_path, QWEN35_27B), weights_dtype="int4")
    card, cpu = device("A770", int(15.11 * GiB)), device("CPU", 64 * GiB)
    plan = make_plan(profile, [card, cpu], PlanRequest())
    told = next(warning for warning in plan.warnings if "--maximize decode" in warning)
    quick = make_plan(profile, [card, cpu], PlanRequest(maximize="decode"))
    slow, fast = plan.partition.counts[1], quick.partition.counts[1]
    assert told.startswith(f"{slow} of 64 layers are on the CPU")
    assert f"({quick.partition}) {fast} are" in told
    assert f"{quick.kv_cache_tokens:,} tokens instead of {plan.kv_cache_tokens:,}" in told
    assert fast < slow
    assert quick.max_model_len >= 8192
    assert any("CPU 60" in warning for warning in quick.warnings)
    assert not any("layers are on the CPU" in warning for warning in quick.warnings)
    given = dataclasses.replace(PlanRequest(), partition=(32, 32))
    assert not any("--maximize" in w for w in make_plan(profile, [card, cpu], given).warnings)


@pytest.mark.parametrize("speeds", [(None, None), (560.0, None), (None, 60.0), (560.0, 60.0)])
def test_decode_puts_layers_on_cards_whichever_bandwidths_are_given(
    speeds: tuple[float | None, float | None], tmp_path: Path
) -> None:
    profile = load_profile(write_config(tmp_path, QWEN35_27B), weights_dtype="int4")
    cards = [
        device("A770", int(15.11 * GiB), bandwidth=speeds[0]),
        device("CPU", 64 * GiB, bandwidth=speeds[1]),
    ]
    request = PlanRequest(maximize="decode", max_model_len=4096)
    plan = make_plan(profile, cards, request)
    more = Partition((plan.partition.counts[0] + 1, plan.partition.counts[1] - 1))
    with pytest.raises(DoesNotFit):  # not one more layer goes on the card
        make_plan(profile, cards, dataclasses.replace(request, partition=more.counts))
    assert (plan.decode_tokens_per_s_limit is None) == (None in speeds)
    assert any("assumed" in warning for warning in plan.warnings) == (None in speeds)


def test_cards_of_unknown_speed_tie_with_the_slowest_known() -> None:
    cards = [device("a", 9000, bandwidth=560.0), device("b", 9000, bandwidth=456.0)]
    unknown = device("c", 9000)
    assert assumed_bandwidths([*cards, unknown]) == [560.0, 456.0, 456.0]
    assert assumed_bandwidths([unknown, device("cpu", 9000)]) == [456.0, 60.0]
    assert assumed_bandwidths([device("cpu:0", 9000, bandwidth=200.0)]) == [200.0]
    slow = device("d", 9000, bandwidth=50.0)
    assert assumed_bandwidths([slow, device("CPU", 9000)]) == [50.0, 50.0]


def test_vllm_does_not_run_a_processor_beside_cards() -> None:
    cards = [device("a", GiB), device("CPU", GiB)]
    assert any("--host openvino" in w for w in make_plan(dense(), cards, BARE).warnings)
    other = dataclasses.replace(BARE, host="openvino")
    assert not any("--host openvino" in w for w in make_plan(dense(), cards, other).warnings)
    assert not make_plan(dense(), [cards[1]] * 2, BARE).warnings


def test_warns_of_the_image_that_vllm_tries_at_start(tmp_path: Path) -> None:
    profile = load_profile(write_config(tmp_path, QWEN35_27B), weights_dtype="int4")
    cards = [device("B70", 30 * GiB)]
    assert any(
        "1.33 GiB" in warning for warning in make_plan(profile, cards, PlanRequest()).warnings
    )
    on_cpu = [device("cpu:0", 64 * GiB)]
    assert not make_plan(profile, on_cpu, PlanRequest()).warnings


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"large_allocations": True}, "--large-allocations is OpenVINO's"),
        ({"mamba_cache_mode": "align", "prefix_caching": False}, "off vLLM runs mode none"),
        ({"mamba_cache_mode": "none", "prefix_caching": True}, "on vLLM runs mode align"),
        ({"host": "openvino", "block_size": 32}, "(blocks of 16 tokens): --block-size"),
        (
            {"host": "openvino", "gpu_memory_utilization": 0.5, "prefix_caching": False},
            "--gpu-memory-utilization, --prefix-caching",
        ),
    ],
)
def test_warns_of_options_that_change_nothing(changes: dict[str, Any], says: str) -> None:
    cards = [device("a", GiB)]
    profile = load_profile(BUNDLED)
    warnings = make_plan(profile, cards, PlanRequest(**changes)).warnings
    assert sum(says in warning for warning in warnings) == 1
    heard = {"mamba_cache_mode": "align", "host": "vllm", "block_size": 32}
    assert not any(says in w for w in make_plan(profile, cards, PlanRequest(**heard)).warnings)


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
