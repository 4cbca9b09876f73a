"""From a folder and devices to a plan, by arcpp's planner and its hooks."""

from __future__ import annotations

from collections.abc import Sequence

from arcpp.hooks import Hooks
from arcpp.plan import Plan
from arcpp.request import PlanRequest

from .devices import planner_devices
from .folder import IrFolder
from .options import ChainOptions

#: Of the plan and of OpenVINO's CPU and GPU plugins where nothing is set.
_KV_DEFAULT = "u8"


def plan_chain(
    hooks: Hooks,
    folder: IrFolder,
    devices: Sequence[str],
    partition: tuple[int, ...] | None,
    options: ChainOptions,
) -> Plan:
    """The plan for ``devices``, one per stage. Raises DoesNotFit, BadInput, BadModel."""
    settings = hooks.settings
    found = planner_devices(devices, settings)
    settings.check_device_memory(found)
    request = PlanRequest(
        host="openvino",
        partition=partition,
        max_num_seqs=options.max_sequences,
        max_num_batched_tokens=options.max_batch_tokens,
        max_model_len=options.max_model_len,
        kv_cache_dtype=options.kv_cache_precision or _KV_DEFAULT,
        margin=settings.margin if options.margin is None else options.margin,
        reserves=settings.reserves_on(found),
        large_allocations=_large(devices, options),
    )
    profile = hooks.model_profile(folder.path, host="openvino")
    return hooks.plan(profile, found, request)


def useful_blocks(plan: Plan) -> int:
    """KV blocks of ``plan`` that requests can use: fewer than fit where memory is plenty."""
    return min(plan.num_blocks, plan.max_num_seqs * plan.blocks_per_request)


def _large(devices: Sequence[str], options: ChainOptions) -> bool:
    name = "GPU_ENABLE_LARGE_ALLOCATIONS"
    gpus = [device for device in devices if device != "CPU"]
    return bool(gpus) and all(options.config(device).get(name) for device in gpus)
