"""From what a worker knows to the layer partition that all stages agree on.

Every stage measures its own device, the measurements are exchanged, and the same deterministic
planner runs on every stage. No weight has been read by then.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from vllm.logger import init_logger
from vllm.platforms import current_platform

from arcpp.devices import Device
from arcpp.errors import UnknownModel
from arcpp.hooks import Hooks, check_same_plan, hooks_for, plan_fact
from arcpp.partition import parse_partition
from arcpp.planner import Plan, PlanRequest
from arcpp.report import plan_text
from arcpp.settings import Settings, from_additional_config

from . import budget, duplicates, model_files
from .compat import vllm_version
from .exchange import gather
from .measure import devices_of, measure, utilization
from .scope import PARTITION_VARIABLE

logger = init_logger("vllm.arcpp.plan")


def agree(worker: Any) -> Plan | None:
    """Plan all stages and publish the layer partition to vLLM; the same on every rank.

    Collective over all stages. A partition the user set is kept and checked. Returns None for
    an architecture the planner does not know when the user's partition (or a single stage)
    leaves nothing to plan. Raises DoesNotFit, BadInput; PluginError and StagesDisagree when a
    plugin spoils the plan.
    """
    settings = settings_of(worker)
    hooks = hooks_for(settings)
    memories = gather(measure(worker, settings))
    devices = devices_of(memories, settings.reserve)
    settings.check_device_memory(devices)
    request = _request(worker, memories)
    request = replace(request, margin=settings.margin, reserves=settings.reserves_on(devices))
    plan = _planned(worker, hooks, devices, request)
    check_same_plan(gather(plan_fact(plan)))
    budget.apply(worker, settings, request, devices[worker.rank], plan)
    if plan is None:
        return None
    hooks.plan_made(plan, worker.rank)
    if worker.parallel_config.pipeline_parallel_size > 1:
        os.environ[PARTITION_VARIABLE] = str(plan.partition)
    if worker.rank == 0:
        logger.info("arcpp: the plan for %s\n%s", worker.model_config.model, plan_text(plan))
    return plan


def settings_of(worker: Any) -> Settings:
    """What ``--additional-config`` and the variables of this process set. Raises BadInput."""
    return from_additional_config(worker.vllm_config.additional_config)


def _planned(worker: Any, hooks: Hooks, devices: list[Device], request: PlanRequest) -> Plan | None:
    """The plan for what all stages measured; None and raises as agree()."""
    try:
        folder = model_files.local_folder(worker)
        profile = hooks.model_profile(folder, dtype=request.dtype, host=request.host)
    except UnknownModel as error:
        if request.partition is None and len(devices) > 1:
            raise UnknownModel(
                error.what,
                error.value,
                f"{error.right} (or split the layers by hand with {PARTITION_VARIABLE})",
            ) from error
        if worker.rank == 0:
            logger.warning("arcpp: %s; the partition could not be checked against memory", error)
        return None
    if request.kv_memory is not None and not current_platform.is_cpu():
        # Alone, a size of the cache says nothing of which layers fit where.
        without = hooks.plan(profile, devices, replace(request, kv_memory=None))
        request = budget.with_explicit_cache(request, without)
    return hooks.plan(profile, devices, request)


def layer_range(plan: Plan | None, rank: int) -> str:
    """This stage's layers for a log line: "[0, 5)"."""
    if plan is None:
        return "as set by hand"
    return f"[{plan.stages[rank].low}, {plan.stages[rank].high})"


def _request(worker: Any, memories: list[dict[str, Any]]) -> PlanRequest:
    """What this vLLM will run with, in the planner's terms."""
    model, cache, scheduler = worker.model_config, worker.cache_config, worker.scheduler_config
    automatic = getattr(model, "original_max_model_len", None) == -1
    given, kv_memory = os.environ.get(PARTITION_VARIABLE), cache.kv_cache_memory_bytes
    return PlanRequest(
        host="vllm",
        version=vllm_version(),
        partition=None if given is None else parse_partition(given, PARTITION_VARIABLE).counts,
        kv_memory=None if kv_memory is None else (int(kv_memory),),
        gpu_memory_utilization=utilization(cache, memories),
        block_size=cache.block_size if cache.user_specified_block_size else None,
        mamba_cache_mode=cache.mamba_cache_mode,
        max_model_len="auto" if automatic else model.max_model_len,
        max_num_seqs=scheduler.max_num_seqs,
        max_num_batched_tokens=scheduler.max_num_batched_tokens,
        dtype=str(model.dtype).removeprefix("torch."),
        kv_cache_dtype=cache.cache_dtype,
        prefix_caching=cache.enable_prefix_caching,
        dropped_roles=duplicates.droppable(worker.vllm_config),
        platform=current_platform.device_type,
        inside_host=True,
        ssm_dtype=None if cache.mamba_ssm_cache_dtype == "auto" else cache.mamba_ssm_cache_dtype,
    )
