"""The planner's cache arithmetic against vLLM's own, in process, block for block.

For each model and number of stages one real VllmConfig is made; the specs are built from
vLLM's classes, and get_kv_cache_configs and the log's own arithmetic say what is right.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from arcpp.devices import Device, DeviceMemory
from arcpp.errors import DoesNotFit
from arcpp.partition import Partition, even_split
from arcpp.planner import PlanRequest, make_plan
from arcpp.profile import ModelProfile, load_profile
from arcpp.units import GiB, MiB
from tests.support.vllm_config import vllm_config

pytestmark = pytest.mark.vllm

BUNDLED = Path(__file__).parents[1] / "models" / "kjv-hybrid-8l" / "hf"
BLOCK_SIZES = (None, 16, 32, 48, 128, 640)
BUDGETS = (3 * MiB + 1, 40 * MiB + 12345, 257 * MiB, 2 * GiB + 7)

QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "torch_dtype": "bfloat16",
    "num_hidden_layers": 9,
    "hidden_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "intermediate_size": 256,
    "vocab_size": 512,
    "tie_word_embeddings": False,
    "max_position_embeddings": 8192,
}
QWEN3_NEXT = {
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "torch_dtype": "bfloat16",
    "num_hidden_layers": 12,
    "hidden_size": 128,
    "full_attention_interval": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "intermediate_size": 256,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "vocab_size": 512,
    "tie_word_embeddings": False,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "linear_conv_kernel_dim": 4,
    "max_position_embeddings": 8192,
}


@dataclass
class Host:
    """A real VllmConfig for one model and number of stages, and the model's profile."""

    config: Any
    profile: ModelProfile
    stages: int

    @property
    def ssm_dtype(self) -> str | None:
        """What the platform made of the state's dtype, for the planner."""
        found = self.config.cache_config.mamba_ssm_cache_dtype
        return None if found == "auto" else str(found)


@pytest.fixture(scope="module", params=["bundled", "qwen3", "qwen3_next"])
def model_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if request.param == "bundled":
        return BUNDLED
    folder = tmp_path_factory.mktemp(request.param)
    config = QWEN3 if request.param == "qwen3" else QWEN3_NEXT
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


@pytest.fixture(scope="module", params=[1, 2, 3], ids=["pp1", "pp2", "pp3"])
def host(model_path: Path, request: pytest.FixtureRequest) -> Host:
    config = vllm_config(model_path, request.param)
    return Host(config, load_profile(model_path, dtype="bfloat16"), request.param)


def resolve_cache(host: Host, block_size: int | None, caching: bool) -> None:
    """Let vLLM settle block size, mamba mode and page padding as at a start."""
    from vllm.model_executor.models.config import MambaModelConfig
    from vllm.platforms.cpu import CpuPlatform
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    cache = host.config.cache_config
    cache.block_size = block_size or 128
    cache.user_specified_block_size = block_size is not None
    cache.enable_prefix_caching = caching
    cache.mamba_cache_mode, cache.mamba_block_size = "none", None
    cache.mamba_page_size_padded = None
    cache.kv_cache_layout = "LBHNC"
    if host.profile.hybrid:
        MambaModelConfig.verify_and_update_config(host.config)

        class Platform(CpuPlatform):  # type: ignore[misc]
            @classmethod
            def _find_non_ssm_backends(cls, _config: Any) -> list[Any]:
                return [CPUAttentionBackend]

        Platform.update_block_size_for_backend(host.config)


def specs_by_rank(host: Host, partition: Partition) -> list[dict[str, Any]]:
    """The specs each rank's layers report, from vLLM's own classes and shape rules."""
    from vllm.model_executor.models import ModelRegistry
    from vllm.v1.kv_cache_interface import FullAttentionSpec, MambaSpec

    config, cache = host.config, host.config.cache_config
    model = config.model_config
    full = FullAttentionSpec(
        block_size=cache.block_size,
        num_kv_heads=model.get_num_kv_heads(config.parallel_config),
        head_size=model.get_head_size(),
        dtype=model.dtype,
    )
    state = None
    if host.profile.hybrid:
        cls, _ = ModelRegistry.resolve_model_cls(model.architecture, model_config=model)
        state = MambaSpec(
            shapes=cls.get_mamba_state_shape_from_config(config),
            dtypes=cls.get_mamba_state_dtype_from_config(config),
            block_size=cache.mamba_block_size,
            page_size_padded=cache.mamba_page_size_padded,
            mamba_cache_mode=cache.mamba_cache_mode,
            num_speculative_blocks=config.num_speculative_tokens,
        )
    return [
        {
            f"layers.{index}": state if host.profile.layers[index].state else full
            for index in range(stage.low, stage.high)
        }
        for stage in partition.stages
    ]


def partitions(host: Host) -> list[Partition]:
    layers = len(host.profile.layers)
    uneven = {1: (layers,), 2: (layers - 1, 1), 3: (1, layers - 3, 2)}
    return [even_split(layers, host.stages), Partition(uneven[host.stages])]


def expected(host: Host, partition: Partition, budgets: list[int]) -> tuple[int, int] | None:
    """(num_blocks, tokens logged) by vLLM, or None where it refuses."""
    from vllm.v1.core.kv_cache_utils import (
        generate_scheduler_kv_cache_config,
        get_kv_cache_capacity,
        get_kv_cache_configs,
    )

    try:
        made = get_kv_cache_configs(host.config, specs_by_rank(host, partition), budgets)
    except ValueError:
        return None
    scheduler = generate_scheduler_kv_cache_config(made)
    return scheduler.num_blocks, get_kv_cache_capacity(host.config, scheduler)[0]


def planned(
    host: Host, partition: Partition, budgets: list[int], block_size: int | None, caching: bool
) -> tuple[int, int, int] | None:
    """(num_blocks, tokens, block size) by the planner, or None where it refuses."""
    request = PlanRequest(
        version="0.32.0",
        partition=partition.counts,
        kv_memory=tuple(budgets),
        block_size=block_size,
        prefix_caching=caching,
        max_model_len=host.config.model_config.max_model_len,
        platform="cpu",
        ssm_dtype=host.ssm_dtype,
    )
    memory = DeviceMemory(64 * GiB, 64 * GiB)
    devices = [Device(f"cpu:{index}", memory) for index in range(host.stages)]
    try:
        plan = make_plan(host.profile, devices, request)
    except DoesNotFit:
        return None
    return plan.num_blocks, plan.kv_cache_tokens, plan.block_tokens


@pytest.mark.parametrize("caching", [True, False], ids=["caching", "no-caching"])
@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_blocks_and_tokens_are_exactly_those_of_vllm(
    host: Host, block_size: int | None, caching: bool
) -> None:
    resolve_cache(host, block_size, caching)
    compared = 0
    for partition in partitions(host):
        for number, budget in enumerate(BUDGETS):
            budgets = [budget + number * 7919 * rank for rank in range(host.stages)]
            right = expected(host, partition, budgets)
            ours = planned(host, partition, budgets, block_size, caching)
            if right is None:
                assert ours is None
                continue
            assert ours == (*right, host.config.cache_config.block_size)
            compared += 1
    assert compared >= 2


def test_longest_length_is_exactly_that_of_auto_fit(host: Host) -> None:
    """--max-model-len -1 in vLLM against the planner's longest request."""
    from vllm.v1.core.kv_cache_utils import get_kv_cache_configs

    resolve_cache(host, None, True)
    model = host.config.model_config
    length, partition = model.max_model_len, partitions(host)[0]
    for budget in (2 * MiB, 3 * MiB, 5 * MiB, 9 * MiB, 64 * MiB):
        budgets = [budget] * host.stages
        model.original_max_model_len, model.max_model_len = -1, host.profile.max_model_len
        try:
            get_kv_cache_configs(host.config, specs_by_rank(host, partition), budgets)
            right: int | None = model.max_model_len
        except ValueError:
            right = None
        finally:
            model.original_max_model_len, model.max_model_len = length, length
        request = PlanRequest(
            version="0.32.0",
            partition=partition.counts,
            kv_memory=tuple(budgets),
            prefix_caching=True,
            platform="cpu",
            ssm_dtype=host.ssm_dtype,
        )
        memory = DeviceMemory(64 * GiB, 64 * GiB)
        devices = [Device(f"cpu:{index}", memory) for index in range(host.stages)]
        try:
            ours: int | None = make_plan(host.profile, devices, request).max_model_len
        except DoesNotFit:
            ours = None
        assert ours == right


@pytest.mark.parametrize("caching", [True, False], ids=["caching", "no-caching"])
def test_requests_at_once_are_what_vllms_own_specs_hold(host: Host, caching: bool) -> None:
    """What the executor lowers max_num_seqs to, from vLLM's caches, against the plan."""
    from vllm.v1.core.kv_cache_utils import get_kv_cache_configs

    from arcpp_vllm import concurrency

    resolve_cache(host, None, caching)
    partition = partitions(host)[0]
    for budget in (40 * MiB, 257 * MiB, 700 * MiB):
        made = get_kv_cache_configs(
            host.config, specs_by_rank(host, partition), [budget] * host.stages
        )
        request = PlanRequest(
            version="0.32.0",
            partition=partition.counts,
            kv_memory=(budget,),
            prefix_caching=caching,
            max_num_seqs=10**6,
            max_num_batched_tokens=10**6,
            platform="cpu",
            ssm_dtype=host.ssm_dtype,
        )
        memory = DeviceMemory(64 * GiB, 64 * GiB)
        devices = [Device(f"cpu:{index}", memory) for index in range(host.stages)]
        plan = make_plan(host.profile, devices, request)
        assert concurrency.bound(host.config, made) == plan.max_num_seqs


class Speculation:
    """As much of a SpeculativeConfig as the cache arithmetic reads."""

    method = "mtp"

    def __init__(self, tokens: int) -> None:
        self.num_speculative_tokens = tokens

    def __getattr__(self, name: str) -> Any:
        return lambda *_: False


@pytest.mark.parametrize("model_path", ["bundled"], indirect=True, scope="module")
@pytest.mark.parametrize("tokens", [1, 3])
@pytest.mark.parametrize("caching", [True, False], ids=["caching", "no-caching"])
def test_draft_tokens_cost_what_they_cost_in_vllm(host: Host, tokens: int, caching: bool) -> None:
    """State blocks and the draft layer, which joins the attention layers of the last rank."""
    host.config.speculative_config = Speculation(tokens)
    try:
        resolve_cache(host, None, caching)
        partition = partitions(host)[0]
        for budget in (11 * MiB, 300 * MiB):
            specs = specs_by_rank(host, partition)
            full = next(s for rank in specs for s in rank.values() if not hasattr(s, "shapes"))
            specs[-1]["mtp.layers.0"] = full
            right = blocks_and_tokens(host, specs, [budget] * host.stages)
            request = PlanRequest(
                version="0.32.0",
                partition=partition.counts,
                kv_memory=(budget,),
                prefix_caching=caching,
                max_model_len=host.config.model_config.max_model_len,
                platform="cpu",
                ssm_dtype=host.ssm_dtype,
                spec_tokens=tokens,
            )
            memory = DeviceMemory(64 * GiB, 64 * GiB)
            devices = [Device(f"cpu:{index}", memory) for index in range(host.stages)]
            plan = make_plan(host.profile, devices, request)
            assert (plan.num_blocks, plan.kv_cache_tokens) == right
            assert plan.block_tokens == host.config.cache_config.block_size
    finally:
        host.config.speculative_config = None


def blocks_and_tokens(host: Host, specs: list[Any], budgets: list[int]) -> tuple[int, int]:
    from vllm.v1.core.kv_cache_utils import (
        generate_scheduler_kv_cache_config,
        get_kv_cache_capacity,
        get_kv_cache_configs,
    )

    scheduler = generate_scheduler_kv_cache_config(
        get_kv_cache_configs(host.config, specs, budgets)
    )
    return scheduler.num_blocks, get_kv_cache_capacity(host.config, scheduler)[0]


GPT_OSS = {
    "architectures": ["GptOssForCausalLM"],
    "torch_dtype": "bfloat16",
    "num_hidden_layers": 24,
    "hidden_size": 2880,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "num_local_experts": 32,
    "num_experts_per_tok": 4,
    "intermediate_size": 2880,
    "vocab_size": 201088,
    "sliding_window": 128,
    "max_position_embeddings": 131072,
}
GEMMA4 = {
    "architectures": ["Gemma4ForCausalLM"],
    "torch_dtype": "bfloat16",
    "num_hidden_layers": 60,
    "hidden_size": 5376,
    "num_attention_heads": 32,
    "num_key_value_heads": 16,
    "head_dim": 256,
    "global_num_key_value_heads": 4,
    "global_head_dim": 512,
    "intermediate_size": 21504,
    "vocab_size": 262144,
    "sliding_window": 1024,
    "max_position_embeddings": 131072,
}


@pytest.mark.parametrize("model_path", ["qwen3"], indirect=True, scope="module")
@pytest.mark.parametrize("family", [GPT_OSS, GEMMA4], ids=["gpt-oss", "gemma4"])
@pytest.mark.parametrize("block_size", [32, 64, 128])
def test_sliding_window_groups_are_those_of_vllm(
    host: Host, family: dict[str, Any], block_size: int, tmp_path: Path
) -> None:
    """Specs of sliding and full layers by hand; any model's config serves the arithmetic."""
    import torch
    from vllm.v1.kv_cache_interface import (
        FullAttentionSpec,
        SlidingWindowSpec,
    )

    resolve_cache(host, block_size, True)
    (tmp_path / "config.json").write_text(json.dumps(family), encoding="utf-8")
    profile = load_profile(tmp_path / "config.json")
    layers = len(profile.layers)
    partition = even_split(layers, host.stages)

    def spec(index: int) -> Any:
        layer = profile.layers[index]
        assert layer.kv is not None
        common = {
            "block_size": block_size,
            "num_kv_heads": layer.kv.heads,
            "head_size": layer.kv.head_dim,
            "dtype": torch.bfloat16,
        }
        if layer.window is None:
            return FullAttentionSpec(**common)
        return SlidingWindowSpec(**common, sliding_window=layer.window)

    specs = [
        {f"layers.{i}": spec(i) for i in range(stage.low, stage.high)} for stage in partition.stages
    ]
    batch = host.config.scheduler_config.max_num_batched_tokens
    for budget in (4 * GiB, 7 * GiB):
        right = blocks_and_tokens(host, specs, [budget] * host.stages)
        request = PlanRequest(
            version="0.32.0",
            partition=partition.counts,
            kv_memory=(budget,),
            block_size=block_size,
            max_model_len=host.config.model_config.max_model_len,
            max_num_batched_tokens=batch,
            platform="cpu",
        )
        memory = DeviceMemory(64 * GiB, 64 * GiB)
        devices = [Device(f"cpu:{index}", memory) for index in range(host.stages)]
        plan = make_plan(profile, devices, request)
        assert (plan.num_blocks, plan.kv_cache_tokens) == right
