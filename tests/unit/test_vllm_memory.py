"""vLLM's cache arithmetic on real models, worked out by hand beside each test.

Blocks of 64 tokens are XPU's; tests/adapters compares the same rules with vLLM itself.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from arcpp.devices import Device, DeviceMemory
from arcpp.plan import Plan
from arcpp.planner import PlanRequest, make_plan
from arcpp.profile import load_profile
from arcpp.units import GiB

from .planner_models import GEMMA4, GPT_OSS, GRANITE, LLAMA_8B, NEMOTRON, QWEN35_27B, write_config


def planned(folder: Path, config: dict[str, Any], *partition: int, **options: Any) -> Plan:
    """The plan of ``config`` on cards with 4 GiB of KV memory each, unless options say more."""
    options = {"kv_memory": (4 * GiB,), "version": "0.32", **options}
    memory = DeviceMemory(1000 * GiB, 1000 * GiB)
    cards = [Device(f"card{index}", memory) for index in range(len(partition))]
    profile = load_profile(write_config(folder, config))
    return make_plan(profile, cards, PlanRequest(partition=partition, **options))


def test_windows_beside_full_attention_gpt_oss(tmp_path: Path) -> None:
    """12 sliding and 12 full layers: two groups. A token takes 8 heads * 64 * 2 * 2 = 2048 bytes
    a layer, a page of 64 tokens 131,072. A window keeps 127 tokens and one batch per stage."""
    plan = planned(tmp_path, GPT_OSS, 12, 12, max_model_len=8192)
    assert [stage.bytes_per_block for stage in plan.stages] == [6 * 131_072] * 2
    assert plan.num_blocks == 4 * GiB // (6 * 131_072) == 5461
    full, window = 8192 // 64, -(-(127 + 2 * 2048) // 64) + 1
    assert plan.blocks_per_request == full + window == 128 + 67
    assert plan.kv_cache_tokens == int(5461 / 195 * 8192) == 229_418
    assert plan.state_blocks_per_request == 0


@pytest.mark.parametrize(
    ("stages", "version", "platform", "batches"),
    [
        ((24,), "0.32", "xpu", 2),  # on one card vLLM schedules ahead
        ((24,), "0.32", "cpu", 1),
        ((24,), "0.25", "xpu", 1),  # one batch, whatever is in flight
        ((8, 8, 8), "0.25", "xpu", 1),
        ((8, 8, 8), "0.32", "xpu", 3),
    ],
)
def test_tokens_in_flight_that_a_window_keeps(
    tmp_path: Path, stages: tuple[int, ...], version: str, platform: str, batches: int
) -> None:
    options = {"version": version, "platform": platform, "block_size": 64}
    plan = planned(tmp_path, GPT_OSS, *stages, max_model_len=131_072, **options)
    window = -(-(127 + batches * 2048) // 64) + 1
    assert plan.blocks_per_request == 131_072 // 64 + window


def test_uneven_heads_gemma_4(tmp_path: Path) -> None:
    """50 sliding layers of 16 * 256 (16,384 bytes a token) and 10 full ones of 4 * 512 (8,192):
    the page is that of 16 sliding tokens, 262,144 bytes, in which a full layer has 32 tokens.
    Ten layers a group: five sliding groups and a full one."""
    plan = planned(tmp_path, GEMMA4, 30, 30, max_model_len=32_768)
    assert plan.stages[0].bytes_per_block == 5 * 262_144
    window = -(-(1023 + 2 * 2048) // 16) + 1
    assert plan.blocks_per_request == 5 * window + 32_768 // 32 == 5 * 321 + 1024
    assert plan.num_blocks == 4 * GiB // (5 * 262_144)


def test_uneven_heads_that_do_not_divide_are_padded(tmp_path: Path) -> None:
    """Full layers of 6 * 512 (12,288 bytes a token) beside 16,384: a page of 16 tokens does not
    divide the sliding layers', and holds no more than its 16 tokens."""
    config = {**GEMMA4, "num_attention_heads": 48, "global_num_key_value_heads": 6}
    plan = planned(tmp_path, config, 30, 30, max_model_len=16_384)
    assert plan.stages[0].bytes_per_block == 5 * 262_144
    assert plan.blocks_per_request == 5 * 321 + 16_384 // 16


def test_fp8_halves_a_token_and_changes_a_hybrids_block(tmp_path: Path) -> None:
    """27B: a state of 3 * 10,240 * 2 + 48 * 128 * 128 * 4 = 3,207,168 bytes; a token takes 4,096
    bytes, or 2,048 in fp8; blocks are multiples of 64."""
    for kv_dtype, token, block in (("auto", 4096, 832), ("fp8", 2048, 1600)):
        plan = planned(tmp_path, QWEN35_27B, 64, kv_cache_dtype=kv_dtype)
        assert plan.block_tokens == block == -(-3_207_168 // (64 * token)) * 64
        assert plan.stages[0].bytes_per_block == 16 * block * token


@pytest.mark.parametrize(
    ("version", "caching", "drafts", "each"),
    [
        ("0.23", None, 0, 1),  # prefix caching is off by default, mode none
        ("0.32", None, 0, 2),  # on, mode align
        ("0.32", False, 0, 1),
        ("0.32", False, 3, 4),
        ("0.32", True, 3, 5),
    ],
)
def test_state_blocks_of_three_groups(
    tmp_path: Path, version: str, caching: bool | None, drafts: int, each: int
) -> None:
    """27B: 48 GDN layers over 16 attention layers (17 with the draft's) are three groups."""
    options = {"version": version, "prefix_caching": caching, "spec_tokens": drafts}
    plan = planned(tmp_path, QWEN35_27B, 32, 32, max_model_len=8192, **options)
    assert plan.state_blocks_per_request == 3 * each
    assert plan.blocks_per_request == 3 * each + -(-8192 // plan.block_tokens)


def test_a_draft_layer_widens_the_last_stage(tmp_path: Path) -> None:
    """Three more convolution rows a state, 3,268,608 bytes: still within 832 tokens. The draft
    layer is the 17th attention layer, on the last stage, and GDN layers come in 17, 17 and 14."""
    plan = planned(tmp_path, QWEN35_27B, 32, 32, spec_tokens=3, prefix_caching=False)
    page = 832 * 4096
    assert [stage.bytes_per_block for stage in plan.stages] == [8 * page, 9 * page]


@pytest.mark.parametrize(
    ("partition", "pages"),
    [((2, 62), (1, 16)), ((3, 61), (1, 16)), ((1, 63), (1, 16)), ((60, 4), (15, 1))],
)
def test_stages_without_attention(
    tmp_path: Path, partition: tuple[int, ...], pages: tuple[int, ...]
) -> None:
    """27B: layers 0, 1 and 2 fall into three groups of GDN layers; layer 3 is attention's."""
    plan = planned(tmp_path, QWEN35_27B, *partition)
    assert [stage.bytes_per_block // (832 * 4096) for stage in plan.stages] == list(pages)


@pytest.mark.parametrize(
    ("config", "groups"), [(NEMOTRON, 4), (GRANITE, 9)], ids=["nemotron", "granite"]
)
@pytest.mark.parametrize(("version", "each"), [("0.23", 1), ("0.31", 2), ("0.32", 3)])
def test_mamba_groups(
    tmp_path: Path, config: dict[str, Any], groups: int, version: str, each: int
) -> None:
    """23 Mamba layers over 6 of attention are 4 groups, 36 over 4 are 9. Mode none keeps one
    block a group, align two, and from 0.32 one more for a checkpoint within a prefill."""
    layers = config["num_hidden_layers"]
    plan = planned(tmp_path, config, layers, max_model_len=4096, version=version)
    assert plan.state_blocks_per_request == groups * each
    assert plan.blocks_per_request == groups * each + -(-4096 // plan.block_tokens)


def test_formats_with_a_scale_per_token_and_head(tmp_path: Path) -> None:
    """Llama 8B: 8 heads of 128, keys and values, and two float32 scales per head."""
    sizes = {"auto": 4096, "fp8": 2048, "int8_per_token_head": 8 * (256 + 8)}
    sizes["int4_per_token_head"] = 8 * (128 + 8)
    for kv_dtype, token in sizes.items():
        plan = planned(tmp_path, LLAMA_8B, 16, 16, kv_cache_dtype=kv_dtype)
        assert plan.stages[0].bytes_per_block == 16 * 64 * token


def test_a_model_of_windows_only_is_one_group(tmp_path: Path) -> None:
    config = {**LLAMA_8B, "sliding_window": 4096}
    plan = planned(tmp_path, config, 16, 16, max_model_len=131_072)
    assert plan.blocks_per_request == -(-(4095 + 2 * 2048) // 64) + 1
    assert plan.stages[0].bytes_per_block == 16 * 64 * 4096


@pytest.mark.parametrize(
    ("version", "usable"), [("0.23", 12), ("0.28", 12), ("0.29", 11), ("0.32", 11)]
)
def test_longest_request_of_twelve_blocks(tmp_path: Path, version: str, usable: int) -> None:
    """27B in fp8, mode none: three state blocks, the null block, and the rest attention's."""
    memory = 12 * 16 * 1600 * 2048 + 12_345
    options = {"version": version, "kv_cache_dtype": "fp8", "prefix_caching": False}
    plan = planned(tmp_path, QWEN35_27B, 64, kv_memory=(memory,), **options)
    assert plan.num_blocks == 12
    assert plan.max_model_len == (usable - 3) * 1600


@pytest.mark.parametrize(("version", "block"), [("0.31", 16), ("0.32", 64)])
def test_smallest_block_of_xpu_flash_attention(tmp_path: Path, version: str, block: int) -> None:
    """The sliding layers start from it where the user asks for less than the kernel runs."""
    plan = planned(tmp_path, GPT_OSS, 24, version=version, block_size=16, max_model_len=64)
    # Page of full layers: 16 tokens; of sliding ones: ``block``. The larger is everybody's.
    assert plan.stages[0].bytes_per_block == 12 * block * 2048


def test_types_with_half_as_many_layers_again_are_not_padded(tmp_path: Path) -> None:
    """3 sliding layers are 1.5 times 2 full ones: two groups of two places, not one of three."""
    kinds = ["sliding_attention", "full_attention"] * 2 + ["sliding_attention"]
    config = {**GPT_OSS, "num_hidden_layers": 5, "layer_types": kinds}
    plan = planned(tmp_path, config, 5, max_model_len=8192, platform="cpu", block_size=64)
    assert plan.stages[0].bytes_per_block == 2 * 131_072
    assert plan.blocks_per_request == 2 * (-(-(127 + 2048) // 64) + 1) + 128


def test_a_window_keeps_one_token_less_than_its_size(tmp_path: Path) -> None:
    """127 + 65 tokens are three blocks of 64 to the token, and the window may start within one."""
    options = {"platform": "cpu", "block_size": 64, "max_num_batched_tokens": 65}
    plan = planned(tmp_path, GPT_OSS, 24, max_model_len=64 * 100, **options)
    assert plan.blocks_per_request == (3 + 1) + 100


@pytest.mark.parametrize(("version", "together"), [("0.28", 3), ("0.32", 2)])
def test_state_and_kv_of_a_pool(tmp_path: Path, version: str, together: int) -> None:
    """27B in fp8, twelve blocks; a request of 1600 tokens takes three of state and one of
    attention. Three run together, or two where the null block is left out."""
    memory, block = 12 * 16 * 1600 * 2048, 16 * 1600 * 2048
    options = {"version": version, "kv_cache_dtype": "fp8", "prefix_caching": False}
    plan = planned(tmp_path, QWEN35_27B, 64, kv_memory=(memory,), max_model_len=1600, **options)
    assert plan.max_num_seqs == together
    assert plan.stages[0].state_bytes == together * 3 * block
    assert plan.stages[0].kv_bytes == (12 - together * 3) * block


def test_workspace_of_each_stage_by_hand(tmp_path: Path) -> None:
    """27B, 65 tokens a step: activations everywhere, two chunks' GDN states (and as much again)
    where there are GDN layers, the rotary table where there is attention, logits at the end."""
    options = {"max_num_batched_tokens": 65, "max_num_seqs": 7}
    profile = load_profile(write_config(tmp_path, QWEN35_27B))
    plan = planned(tmp_path, QWEN35_27B, 3, 1, 60, max_model_len=64, **options)
    activations = 65 * (profile.widths + 3 * 5120) * 2
    delta = 2 * (2 * 48 * 128 * 128 * 2)
    rope, logits = profile.rope_elements * 2, 7 * 248_320 * 8
    assert [stage.workspace_bytes - activations for stage in plan.stages] == [
        delta,
        rope,
        delta + rope + logits,
    ]
