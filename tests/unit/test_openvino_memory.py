"""OpenVINO's cache: blocks of unlike devices, tables, and what one allocation may have."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from arcpp.devices import AllocationLimit, Device, DeviceMemory
from arcpp.errors import DoesNotFit
from arcpp.memory.openvino import kv_block_bytes
from arcpp.planner import PlanRequest, make_plan
from arcpp.profile import KvShape, Layer, ModelProfile, RecurrentState
from arcpp.units import GiB, MiB

REQUEST = PlanRequest(host="openvino", margin=0, max_num_batched_tokens=1, max_num_seqs=1)
SHAPE = KvShape(2, 64, 64)


def model(layers: int = 4, **changes: Any) -> ModelProfile:
    layer = Layer("full_attention", MiB, MiB, SHAPE)
    profile = ModelProfile(
        architecture="Test",
        layers=(layer,) * layers,
        roles={"embed": MiB, "final_norm": 2, "lm_head": MiB},
        tied=False,
        dtype="bfloat16",
        hidden_size=1,
        widths=1,
        vocab_size=1,
        max_model_len=1 << 20,
        source="config",
    )
    return dataclasses.replace(profile, **changes)


def device(name: str, size: int, limit: int | None = None) -> Device:
    allowed = None if limit is None else AllocationLimit(limit, "test")
    return Device(name, DeviceMemory(size, size), None, allowed)


GPU_BLOCK = 2 * 16 * (64 + 64 + 8)  # u8, and 16-bit scale and zero point per token and head
CPU_BLOCK = 2 * (40 * 64 + 32 * 72)  # as compiled: key [2,40,64], value [2,32,72]


def test_blocks_of_each_device() -> None:
    assert kv_block_bytes(SHAPE, "u8", "gpu", "bfloat16") == GPU_BLOCK
    assert kv_block_bytes(SHAPE, "u8", "cpu", "bfloat16") == CPU_BLOCK
    gpu = make_plan(model(), [device("GPU.0", GiB)], REQUEST)
    assert (gpu.block_tokens, gpu.stages[0].bytes_per_block) == (16, 4 * GPU_BLOCK)
    cpu = make_plan(model(), [device("CPU", GiB)], REQUEST)
    assert (cpu.block_tokens, cpu.stages[0].bytes_per_block) == (32, 4 * CPU_BLOCK)


@pytest.mark.parametrize("names", [("GPU.0", "CPU"), ("CPU", "GPU.0")])
def test_beside_a_processor_a_block_is_two_of_a_card(names: tuple[str, str]) -> None:
    """32 tokens: one block of the processor's own size, two of the card's."""
    request = dataclasses.replace(REQUEST, partition=(2, 2))
    plan = make_plan(model(), [device(name, GiB) for name in names], request)
    assert plan.block_tokens == 32
    sizes = {"GPU.0": 2 * 2 * GPU_BLOCK, "CPU": 2 * CPU_BLOCK}
    assert [stage.bytes_per_block for stage in plan.stages] == [sizes[name] for name in names]
    for stage in plan.stages:
        assert stage.kv_bytes == plan.num_blocks * stage.bytes_per_block
        assert stage.unused_bytes >= 0
    assert plan.kv_cache_tokens == plan.num_blocks * 32


def test_a_table_never_exceeds_one_allocation_of_its_card() -> None:
    """Per layer, keys 2*16*68 bytes a block in u8; only the card's stage is limited."""
    keys = 2 * 16 * 68
    cards = [device("GPU.0", GiB, limit=100 * keys + 5), device("GPU.1", GiB)]
    plan = make_plan(model(), cards, REQUEST)
    assert plan.num_blocks == 100
    free = make_plan(model(), cards, dataclasses.replace(REQUEST, large_allocations=True))
    assert free.num_blocks > 100
    wide = model(layers=1, max_model_len=1 << 30)
    usual = make_plan(wide, [device("GPU.0", 1000 * GiB)], REQUEST)
    assert usual.num_blocks == 4 * GiB // keys
    cpu = make_plan(wide, [device("CPU", 1000 * GiB)], REQUEST)
    assert cpu.num_blocks * 32 > usual.num_blocks * 16


def test_refuses_by_stage_and_lack_where_one_table_is_too_large() -> None:
    keys = 2 * 16 * 68
    cards = [device("GPU.0", GiB, limit=100 * keys), device("GPU.1", GiB)]
    request = dataclasses.replace(REQUEST, max_model_len=101 * 16)
    with pytest.raises(DoesNotFit) as caught:
        make_plan(model(), cards, request)
    error = caught.value
    assert (error.stage, error.device, error.missing_bytes) == (0, "GPU.0", keys)
    assert error.nearest == "--large-allocations"
    assert "in one allocation" in str(error)
    longest = dataclasses.replace(request, max_model_len=100 * 16)
    assert make_plan(model(), cards, longest).num_blocks == 100
    with pytest.raises(DoesNotFit) as caught:
        make_plan(model(), [device("GPU.0", GiB, limit=keys - 1)], REQUEST)
    assert caught.value.missing_bytes == 1


def test_state_tables_are_allocations_too() -> None:
    """A slot per request and the zero slot, in float32; conv keeps a column more."""
    state = RecurrentState(3, 10, (4, 8, 8), None)
    layers = (Layer("linear_attention", MiB, MiB, state=state), model().layers[0])
    profile = model(layers=2, max_model_len=64)
    profile = dataclasses.replace(profile, layers=layers)
    ssm = 4 * 8 * 8 * 4
    request = dataclasses.replace(REQUEST, max_num_seqs=9)
    plan = make_plan(profile, [device("GPU.0", GiB, limit=10 * ssm)], request)
    assert plan.stages[0].state_bytes == 10 * (ssm + 4 * 10 * 4)
    with pytest.raises(DoesNotFit) as caught:
        make_plan(profile, [device("GPU.0", GiB, limit=10 * ssm - 1)], request)
    assert caught.value.missing_bytes == 1
    assert caught.value.nearest == "--large-allocations"


def test_state_tables_take_their_share_of_the_budget() -> None:
    """What is left after weights and state is for blocks, to the byte."""
    state = RecurrentState(3, 10, (4, 8, 8), None)
    layers = (Layer("linear_attention", MiB, MiB, state=state), model().layers[0])
    profile = dataclasses.replace(model(layers=2), layers=layers)
    table = 2 * (4 * 8 * 8 * 4 + 4 * 10 * 4)  # one request and the zero slot
    least = make_plan(profile, [device("GPU.0", GiB)], REQUEST).stages[0]
    used = least.weights_bytes + least.workspace_bytes + table
    exact = make_plan(profile, [device("GPU.0", used + 7 * GPU_BLOCK)], REQUEST)
    assert (exact.num_blocks, exact.stages[0].unused_bytes) == (7, 0)
    short = make_plan(profile, [device("GPU.0", used + 7 * GPU_BLOCK - 1)], REQUEST)
    assert short.num_blocks == 6


def test_drafts_need_slots_and_blocks() -> None:
    """A slot more per draft token and request, and the draft layer's blocks on the last stage."""
    state = RecurrentState(3, 10, (4, 8, 8), None)
    attention = model().layers[0]
    layers = (Layer("linear_attention", MiB, MiB, state=state), attention)
    profile = dataclasses.replace(
        model(layers=2), layers=layers, mtp_layers=(attention,), roles={**model().roles, "mtp": 9}
    )
    cards = [device("GPU.0", GiB), device("GPU.1", GiB)]
    request = dataclasses.replace(REQUEST, spec_tokens=2, max_num_seqs=5, partition=(1, 1))
    plan = make_plan(profile, cards, request)
    assert plan.stages[0].state_bytes == (5 * 3 + 1) * (4 * 8 * 8 * 4 + 4 * 10 * 4)
    assert [stage.bytes_per_block for stage in plan.stages] == [0, 2 * GPU_BLOCK]


def test_the_vision_tower_is_not_loaded() -> None:
    """The engine is for text; vLLM loads it whatever is asked."""
    roles = {"embed": MiB, "vision": 5 * MiB, "final_norm": 2, "lm_head": MiB}
    seen = {}
    for host in ("openvino", "vllm"):
        request = dataclasses.replace(REQUEST, host=host)
        plan = make_plan(model(roles=roles), [device("GPU.0", GiB)], request)
        seen[host] = plan.stages[0].roles, plan.stages[0].weights_bytes
    assert seen["vllm"][1] - seen["openvino"][1] == 5 * MiB
    assert "vision" not in seen["openvino"][0]


def test_a_processor_computes_in_float32() -> None:
    """And keeps more than one layer's activations; a card is not known to."""
    request = dataclasses.replace(REQUEST, max_num_batched_tokens=512)
    wide = model(widths=4096, hidden_size=1024)
    found = [
        make_plan(wide, [device(name, 16 * GiB)], request).stages[0].workspace_bytes
        for name in ("CPU", "GPU.0")
    ]
    logits = 8
    assert (found[0] - logits) == (found[1] - logits) * 2 * 9 // 4
