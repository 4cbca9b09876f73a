"""Options and variables that make vLLM run a plan."""

from __future__ import annotations

import json
import shlex

from .partition import Partition
from .plan import Plan
from .profile.model import ModelProfile
from .request import PlanRequest


def arguments(
    request: PlanRequest, profile: ModelProfile, stages: int, effective: int
) -> tuple[str, ...]:
    """Options of ``vllm serve``, for ``effective`` tokens of max-model-len; none for others."""
    if request.host != "vllm":
        return ()
    found = ["--distributed-executor-backend", "arcpp"] if stages > 1 else []
    found += ["--pipeline-parallel-size", str(stages)] if stages > 1 else []
    found += ["--max-model-len", str(effective)]
    if request.kv_cache_dtype != "auto":
        found += ["--kv-cache-dtype", request.kv_cache_dtype]
    if request.dtype is not None:
        found += ["--dtype", request.dtype]
    if request.block_size is not None:
        found += ["--block-size", str(request.block_size)]
    if request.gpu_memory_utilization is not None:
        found += ["--gpu-memory-utilization", f"{request.gpu_memory_utilization:g}"]
    if request.mamba_cache_mode is not None:
        found += ["--mamba-cache-mode", request.mamba_cache_mode]
    if request.ssm_dtype is not None:
        found += ["--mamba-ssm-cache-dtype", request.ssm_dtype]
    if request.prefix_caching is not None or request.mamba_cache_mode is not None:
        caching = request.caching(profile)
        found.append(f"--{'' if caching else 'no-'}enable-prefix-caching")
    if request.max_num_batched_tokens is not None:
        found += ["--max-num-batched-tokens", str(request.max_num_batched_tokens)]
    if request.max_num_seqs is not None:
        found += ["--max-num-seqs", str(request.max_num_seqs)]
    if request.spec_tokens:
        drafts = {"method": "mtp", "num_speculative_tokens": request.spec_tokens}
        found += ["--speculative-config", json.dumps(drafts)]
    return tuple(found)


def environment(request: PlanRequest, partition: Partition) -> dict[str, str]:
    """Variables for the server's environment; none for other hosts and for one stage."""
    if request.host != "vllm" or len(partition.counts) == 1:
        return {}
    margin = {} if request.margin is None else {"ARCPP_MARGIN": str(request.margin)}
    return {"VLLM_PP_LAYER_PARTITION": str(partition), **margin}


def command_lines(model: str, plan: Plan, width: int) -> list[str]:
    """The command that runs ``plan``, to be copied to a shell: lines of at most ``width`` columns,
    ended by backslashes, with an option and its value on one of them."""
    parts = [f"{name}={shlex.quote(value)}" for name, value in plan.env.items()]
    parts.append(f"vllm serve {shlex.quote(model)}")
    for word in plan.host_args:
        if word.startswith("--"):
            parts.append(word)
        else:
            parts[-1] += f" {shlex.quote(word)}"
    lines = [parts[0]]
    for part in parts[1:]:
        if len(f"{lines[-1]} {part} \\") <= width:
            lines[-1] += f" {part}"
        else:
            lines.append(f"    {part}")
    return [f"{line} \\" for line in lines[:-1]] + lines[-1:]
