"""From what a worker knows to the layer partition that all stages agree on.

Every stage measures its own device, the measurements are exchanged, and the same deterministic
planner runs on every stage. No weight has been read by then.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import psutil
from vllm.logger import init_logger
from vllm.platforms import current_platform

from arcpp.errors import HostMismatch, UnknownModel
from arcpp.hooks import Hooks, check_same_plan, hooks_for, plan_fact
from arcpp.partition import parse_partition
from arcpp.planner import Plan, PlanRequest
from arcpp.report import plan_text
from arcpp.settings import Settings, from_additional_config

from . import duplicates, model_files
from .compat import SUPPORTED, vllm_version
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
    plan = _planned(worker, hooks, gather(measure(worker)))
    check_same_plan(gather(plan_fact(plan)))
    if plan is None:
        return None
    _leave_free(worker, settings, plan)
    hooks.plan_made(plan, worker.rank)
    if worker.parallel_config.pipeline_parallel_size > 1:
        os.environ[PARTITION_VARIABLE] = str(plan.partition)
    if worker.rank == 0:
        logger.info("arcpp: the plan for %s\n%s", worker.model_config.model, plan_text(plan))
    return plan


def settings_of(worker: Any) -> Settings:
    """What ``--additional-config`` and the variables of this process set. Raises BadInput."""
    return from_additional_config(worker.vllm_config.additional_config)


def _planned(worker: Any, hooks: Hooks, memories: list[dict[str, Any]]) -> Plan | None:
    """The plan for what all stages measured; None and raises as agree()."""
    devices = devices_of(memories, hooks.settings.reserve)
    stages = worker.parallel_config.pipeline_parallel_size
    given = os.environ.get(PARTITION_VARIABLE)
    reserves = hooks.settings.reserves_on(devices)
    try:
        profile = hooks.model_profile(model_files.local_folder(worker))
    except UnknownModel as error:
        if given is None and stages > 1:
            raise UnknownModel(
                error.what,
                error.value,
                f"{error.right} (or split the layers by hand with {PARTITION_VARIABLE})",
            ) from error
        if worker.rank == 0:
            logger.warning("arcpp: %s; the partition could not be checked against memory", error)
        return None
    request = _request(worker, given, memories)
    request = replace(request, margin=hooks.settings.margin, reserves=reserves)
    return hooks.plan(profile, devices, request)


def share_of(plan: Plan | None, rank: int, measured: int) -> int:
    """KV bytes for this stage: as the host measured, or its share of a device it shares.

    vLLM gives every worker the same fraction of its device; on a device with several stages
    (the CPU) those fractions would add up to more memory than there is.
    """
    if plan is None:
        return measured
    device = plan.stages[rank].device
    if sum(stage.device == device for stage in plan.stages) == 1:
        return measured
    return min(measured, plan.stages[rank].kv_available_bytes)


def layer_range(plan: Plan | None, rank: int) -> str:
    """This stage's layers for a log line: "[0, 5)"."""
    if plan is None:
        return "as set by hand"
    return f"[{plan.stages[rank].low}, {plan.stages[rank].high})"


def _leave_free(worker: Any, settings: Settings, plan: Plan) -> None:
    """Make vLLM leave free what the settings say, where it would take more.

    vLLM sizes the KV cache from its fraction of the device alone; the bytes it may take in all
    are an attribute that it computes in init_device and reads after profiling. Raises
    HostMismatch when that is not there.
    """
    stage = plan.stages[worker.rank]
    if settings.margin is None and stage.device not in settings.reserve:
        return
    name = "requested_cpu_memory" if current_platform.is_cpu() else "requested_memory"
    requested = getattr(worker, name, None)
    if requested is None:
        lacking = (f"the worker's {name} is gone, which the settings margin and reserve need",)
        raise HostMismatch("vLLM", vllm_version(), lacking, SUPPORTED)
    limit = stage.free_bytes - stage.margin_bytes - stage.reserve_bytes
    if current_platform.is_cpu():
        limit += psutil.Process().memory_info().rss  # the worker subtracts what it holds
    if limit < requested:
        setattr(worker, name, limit)


def _request(worker: Any, given: str | None, memories: list[dict[str, Any]]) -> PlanRequest:
    """What this vLLM will run with, in the planner's terms."""
    model, cache, scheduler = worker.model_config, worker.cache_config, worker.scheduler_config
    automatic = getattr(model, "original_max_model_len", None) == -1
    kv_memory = cache.kv_cache_memory_bytes
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
        ssm_dtype=None if cache.mamba_ssm_cache_dtype == "auto" else cache.mamba_ssm_cache_dtype,
    )
