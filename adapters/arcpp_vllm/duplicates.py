"""Giving back what stock vLLM keeps on stages that never run it.

Symptom: Qwen3-Next and Qwen3.5 build ``embed_tokens`` on every stage (qwen3_next.py, qwen3_5.py,
still in 0.33), Qwen3-Next also ``lm_head``, Qwen3.5 the vision tower: for a 27B in bfloat16 that
is 2.37 GiB of embedding alone on every stage but the first. They are replaced, after loading, by
vLLM's own placeholder for layers of other stages. Can go when those models ask for their rank,
as qwen2.py does.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import torch
from vllm.distributed.parallel_state import get_pp_group
from vllm.model_executor.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    VocabParallelEmbedding,
)
from vllm.model_executor.models.utils import PPMissingLayer

from arcpp.request import DROPPED

from .shims import model_bytes

_PLAIN = (bool, int, float, str, tuple, torch.dtype)


class _Absent(PPMissingLayer):
    """vLLM's placeholder with the plain settings of what it stands for (spatial_merge_size, ...).

    Later stages compute rotary positions of images from them.
    """

    def __init__(self, absent: torch.nn.Module) -> None:
        super().__init__()
        for name, value in vars(absent).items():
            if isinstance(value, _PLAIN) and name != "training":
                setattr(self, name, value)


def droppable(vllm_config: Any) -> frozenset[str]:
    """Roles that ``drop`` will give back where a stage has no use for them.

    With LoRA or speculation none: both reach for the embedding on other stages.
    """
    if vllm_config.lora_config or vllm_config.speculative_config:
        return frozenset()
    return DROPPED


def drop(worker: Any) -> dict[str, int]:
    """Role (embed, lm_head, vision) -> bytes this stage gave back; call after load_model.

    Weights that another module of the stage shares (a tied lm_head) stay.
    """
    runner, pp = worker.model_runner, get_pp_group()
    if pp.world_size == 1 or not droppable(worker.vllm_config):
        return {}
    model = runner.model
    before = model_bytes(model)
    given_back: dict[str, int] = {}
    for role, parent, name in list(_unused(model, pp.is_first_rank, pp.is_last_rank)):
        setattr(parent, name, _Absent(getattr(parent, name)))
        after = model_bytes(model)
        given_back[role] = given_back.get(role, 0) + before - after
        before = after
    if "vision" in given_back:
        # The start-up run of the vision tower would look for it on this stage too.
        worker.model_config.multimodal_config.skip_mm_profiling = True
    if given_back:
        _release(runner, sum(given_back.values()))
    return {role: size for role, size in given_back.items() if size}


def _unused(
    model: torch.nn.Module, first: bool, last: bool
) -> Iterator[tuple[str, torch.nn.Module, str]]:
    """(role, parent, attribute) of modules this stage never runs and nobody else shares."""
    towers = set(getattr(model, "_tower_model_names", ()))
    kept = {id(parameter) for parameter in _of_heads(model)} if last else set()
    for path, parent in model.named_modules():
        for name, child in parent.named_children():
            full = f"{path}.{name}" if path else name
            if full in towers:
                if not first:
                    yield "vision", parent, name
            elif isinstance(child, ParallelLMHead):
                if not last:
                    yield "lm_head", parent, name
            elif (
                isinstance(child, VocabParallelEmbedding)
                and not first
                and not any(id(parameter) in kept for parameter in child.parameters())
            ):
                yield "embed", parent, name


def _of_heads(model: torch.nn.Module) -> Iterator[torch.nn.Parameter]:
    for module in model.modules():
        if isinstance(module, ParallelLMHead):
            yield from module.parameters()


def _release(runner: Any, size: int) -> None:
    """Return freed memory to the device and to the host's own book-keeping of weights."""
    gc.collect()
    if torch.accelerator.is_available():
        torch.accelerator.empty_cache()
    if hasattr(runner, "model_memory_usage"):
        runner.model_memory_usage = max(0, runner.model_memory_usage - size)
