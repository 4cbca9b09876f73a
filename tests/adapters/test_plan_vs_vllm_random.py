"""Made-up models of every shape against vLLM's own arithmetic, in process, block for block.

Layers of full and sliding attention and of recurrent state, in any order, number and size, cut
anywhere; what vLLM's platforms do to block sizes is written out here, after their sources.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any

import pytest

from arcpp.devices import Device, DeviceMemory
from arcpp.errors import DoesNotFit
from arcpp.memory.layout import cdiv
from arcpp.partition import Partition
from arcpp.planner import PlanRequest, make_plan
from arcpp.profile import KvShape, Layer, ModelProfile, RecurrentState
from arcpp.units import GiB, MiB
from tests.support.vllm_config import vllm_config

from .test_plan_vs_vllm import QWEN3, Speculation

pytestmark = pytest.mark.vllm

#: Platform -> smallest block its attention kernels run, in vLLM 0.32.
KERNELS = {"cpu": 32, "cuda": 16, "xpu": 64}


@pytest.fixture(scope="module", params=[1, 2, 3, 4], ids=lambda stages: f"pp{stages}")
def config(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A real VllmConfig; any model's serves the arithmetic."""
    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text(json.dumps(QWEN3), encoding="utf-8")
    return vllm_config(folder, request.param)


@dataclass
class Case:
    """One made-up model, its cuts and options."""

    layers: list[Layer]
    drafts: list[Layer]
    partition: Partition
    platform: str
    block: int
    fp8: bool
    caching: bool
    spec: int
    length: int
    batched: int
    budgets: tuple[int, ...]

    @property
    def bytes(self) -> int:
        return 1 if self.fp8 else 2

    @property
    def kernel(self) -> int:
        """Heads of several sizes are Triton's on XPU."""
        sizes = {layer.kv.head_dim for layer in self.layers if layer.kv is not None}
        return 16 if self.platform == "xpu" and len(sizes) > 1 else KERNELS[self.platform]

    @property
    def mode(self) -> str:
        return "align" if self.caching else "none"

    def state_page(self, state: RecurrentState) -> int:
        size = 4 if state.ssm_dtype else 2
        return (state.conv_rows + self.spec) * state.conv_dim * 2 + prod(state.ssm) * size

    def resolved(self) -> tuple[int, int | None]:
        """(block size, padded page of state) after the platform, as in platforms/interface.py."""
        states = [layer.state for layer in self.layers if layer.state is not None]
        shapes = [layer.kv for layer in self.layers if layer.kv is not None]
        if not states or not shapes:
            return self.block, None
        kernel, token = self.kernel, shapes[0].elements * self.bytes
        page = self.state_page(states[0])
        step = max(kernel, self.block)
        grown = kernel * cdiv(step * cdiv(page, step * token), kernel)
        block = max(self.block, grown)
        if self.platform == "xpu":  # the GDN kernel wants multiples of 64
            block = 64 * cdiv(block, 64)
        return block, None if block * token == page else block * token

    def request(self) -> PlanRequest:
        return PlanRequest(
            version="0.32.0",
            partition=self.partition.counts,
            kv_memory=self.budgets,
            block_size=self.block,
            prefix_caching=self.caching,
            max_model_len=self.length,
            platform=self.platform,
            kv_cache_dtype="fp8" if self.fp8 else "auto",
            spec_tokens=self.spec,
            max_num_batched_tokens=self.batched,
        )

    def profile(self) -> ModelProfile:
        return ModelProfile(
            architecture="Test",
            layers=tuple(self.layers),
            roles={"embed": 1, "final_norm": 1, "lm_head": 1, "mtp": 1},
            tied=False,
            dtype="bfloat16",
            hidden_size=1,
            widths=1,
            vocab_size=1,
            max_model_len=8192,
            source="config",
            mtp_layers=tuple(self.drafts),
        )


def made_up(rng: random.Random, stages: int) -> Case:
    full, narrow = shape(rng, (1, 2, 4, 8)), shape(rng, (1, 2, 4, 16))
    attention = Layer("full_attention", 1, 1, full)
    sliding = Layer(
        "sliding_attention", 1, 1, rng.choice([full, narrow]), rng.choice([128, 1000, 4096])
    )
    state = RecurrentState(
        rng.randint(1, 3),
        rng.choice([64, 200, 1024]),
        (rng.choice([4, 8]), 64, rng.choice([32, 64, 128])),
        rng.choice(["float32", None]),
    )
    recurrent = Layer("linear_attention", 1, 1, state=state)
    kinds = rng.choice(
        [[attention], [sliding], [attention, sliding, sliding], [attention, *[recurrent] * 3]]
    )
    count = rng.randint(stages + 1, 40)
    layers = [rng.choice(kinds) for _ in range(count)]
    spec = rng.choice([0, 1, 3]) if recurrent in layers else 0
    cuts = (0, *sorted(rng.sample(range(1, count), stages - 1)), count)
    least = rng.choice([3 * MiB, 64 * MiB, GiB, 5 * GiB])
    return Case(
        layers=layers,
        drafts=[attention] if spec else [],
        partition=Partition(tuple(b - a for a, b in pairwise(cuts))),
        platform=rng.choice(list(KERNELS)),
        block=rng.choice([16, 32, 48, 64, 128]),
        fp8=rng.random() < 0.3,
        caching=rng.random() < 0.5,
        spec=spec,
        length=rng.choice([1, 17, 1000, 4096, 8192]),
        batched=rng.choice([256, 2048]),
        budgets=tuple(least + rng.randint(0, 10**6) for _ in range(stages)),
    )


def shape(rng: random.Random, heads: tuple[int, ...]) -> KvShape:
    size = rng.choice([64, 80, 96, 128, 256])
    return KvShape(rng.choice(heads), size, size)


def settle(config: Any, case: Case) -> None:
    """Put the case's options into ``config``, settled as at a start."""
    cache, model, scheduler = config.cache_config, config.model_config, config.scheduler_config
    cache.block_size, _ = case.resolved()
    cache.mamba_cache_mode, cache.kv_cache_layout = case.mode, "LBHNC"
    cache.enable_prefix_caching = case.caching
    cache.mamba_block_size = cache.block_size if case.caching else case.length
    model.max_model_len = model.original_max_model_len = case.length
    scheduler.max_num_batched_tokens = case.batched
    # On one card vLLM schedules ahead, unless it is the CPU.
    scheduler.async_scheduling = len(case.partition.counts) == 1 and case.platform != "cpu"
    config.speculative_config = Speculation(case.spec) if case.spec else None


def specs_of(config: Any, case: Case) -> list[dict[str, Any]]:
    """Every rank's specs, as layers report them (attention.py, mamba/abstract.py)."""
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec, MambaSpec, SlidingWindowSpec

    block, padded = case.resolved()

    def spec(layer: Layer) -> Any:
        if layer.state is not None:
            state = layer.state
            wide = torch.float32 if state.ssm_dtype else torch.bfloat16
            return MambaSpec(
                shapes=((state.conv_rows + case.spec, state.conv_dim), state.ssm),
                dtypes=(torch.bfloat16, wide),
                block_size=config.cache_config.mamba_block_size,
                page_size_padded=padded,
                mamba_cache_mode=case.mode,
                num_speculative_blocks=case.spec,
            )
        assert layer.kv is not None
        common: dict[str, Any] = {
            "num_kv_heads": layer.kv.heads,
            "head_size": layer.kv.head_dim,
            "dtype": torch.float8_e4m3fn if case.fp8 else torch.bfloat16,
        }
        if layer.window is None:
            return FullAttentionSpec(block_size=block, **common)
        own = max(case.kernel, block // case.kernel * case.kernel)
        return SlidingWindowSpec(block_size=own, sliding_window=layer.window, **common)

    made = [
        {f"layers.{i}": spec(case.layers[i]) for i in range(stage.low, stage.high)}
        for stage in case.partition.stages
    ]
    made[-1].update({f"mtp.layers.{i}": spec(layer) for i, layer in enumerate(case.drafts)})
    return made


@pytest.mark.parametrize("seed", range(4))
def test_any_model_takes_the_blocks_it_takes_in_vllm(config: Any, seed: int) -> None:
    from vllm.v1.core.kv_cache_utils import (
        generate_scheduler_kv_cache_config,
        get_kv_cache_capacity,
        get_kv_cache_configs,
    )

    stages = config.parallel_config.pipeline_parallel_size
    rng, fitted = random.Random(seed), 0
    for _ in range(100):
        case = made_up(rng, stages)
        settle(config, case)
        right: tuple[int, int] | None
        try:
            found = get_kv_cache_configs(config, specs_of(config, case), list(case.budgets))
            scheduler = generate_scheduler_kv_cache_config(found)
            right = scheduler.num_blocks, get_kv_cache_capacity(config, scheduler)[0]
        except ValueError:
            right = None
        devices = [Device(f"d{i}", DeviceMemory(64 * GiB, 64 * GiB)) for i in range(stages)]
        ours: tuple[int, int] | None
        try:
            plan = make_plan(case.profile(), devices, case.request())
            ours = plan.num_blocks, plan.kv_cache_tokens
        except DoesNotFit:
            ours = None
        assert ours == right, case
        fitted += right is not None
    assert fitted > 50
