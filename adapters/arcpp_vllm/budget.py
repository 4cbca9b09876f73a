"""What a stage may take of its own device: the plan's figure, in place of one fraction for all.

vLLM gives every worker the same ``--gpu-memory-utilization`` of its device's total. Cards differ,
drive monitors, hold other programs' memory: what a stage may take is what the plan says of its
device. The fraction stays an upper bound.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import ModuleType
from typing import Any

import psutil
from vllm.logger import init_logger
from vllm.platforms import current_platform

from arcpp.devices import Device
from arcpp.errors import BadInput, HostMismatch
from arcpp.plan import Plan
from arcpp.request import PlanRequest
from arcpp.settings import Settings
from arcpp.units import format_gib

from .compat import SUPPORTED, vllm_version

logger = init_logger("vllm.arcpp.budget")

_CHECK = "request_memory"


@contextmanager
def start_with_what_is_free(worker: Any) -> Iterator[None]:
    """While an accelerator's worker initialises its device: too little free memory is no error yet.

    Symptom: ``ValueError: Free memory on device xpu:0 (10.1/12.0 GiB) on startup is less than
    desired GPU memory utilization`` (v1/worker/utils.request_memory, 0.30.0 to 0.33.0) on a card
    that drives a monitor or holds another program, however little the model needs of it. Here
    such a card answers with what it has free; the plan then decides, in :func:`apply`. Can go when
    vLLM takes a budget per worker. Raises HostMismatch where the check is gone.
    """
    if current_platform.is_cpu():
        yield
        return
    modules = _modules_with_check(type(worker))
    if not modules:
        raise HostMismatch("vLLM", vllm_version(), (f"{_CHECK} is gone",), SUPPORTED)
    originals = [getattr(module, _CHECK) for module in modules]
    for module, original in zip(modules, originals, strict=True):
        setattr(module, _CHECK, _lenient(original))
    try:
        yield
    finally:
        for module, original in zip(modules, originals, strict=True):
            setattr(module, _CHECK, original)


def _modules_with_check(worker_class: type) -> list[ModuleType]:
    """Modules of the worker's classes that imported the check by name (gpu_worker, xpu_worker)."""
    modules = [sys.modules[cls.__module__] for cls in worker_class.__mro__]
    return [module for module in dict.fromkeys(modules) if hasattr(module, _CHECK)]


def _lenient(original: Any) -> Any:
    """``request_memory`` that answers with what is free where the original would refuse."""

    def request_memory(
        init_snapshot: Any, cache_config: Any, external_weight_memory: int = 0
    ) -> int:
        if external_weight_memory:  # weights of another process: not ours to judge
            return int(original(init_snapshot, cache_config, external_weight_memory))
        try:
            return int(original(init_snapshot, cache_config))
        except ValueError:
            return max(0, int(init_snapshot.free_memory))

    return request_memory


def apply(
    worker: Any, settings: Settings, request: PlanRequest, device: Device, plan: Plan | None
) -> None:
    """Let vLLM take of this stage's ``device`` what the plan says, and say so in one line.

    The bytes a worker may take in all are an attribute that vLLM computes in init_device and
    reads after profiling. On the CPU its own fraction stays, unless the settings margin and
    reserve ask for less, and an explicit cache must fit. Raises BadInput when nothing is left or
    it does not, HostMismatch when the attribute is not there.
    """
    if current_platform.is_cpu():
        _check_explicit_on_cpu(request, device, plan)
        _leave_free_on_cpu(worker, settings, plan)
        return
    _require(worker, "requested_memory", "the plan")
    memory = device.memory
    reserve = memory.reserve + request.reserves.get(device.name, 0)
    budget, margin = request.budget(device), request.margin_of(device)
    if plan is not None:
        stage = plan.stages[worker.rank]
        margin, reserve = stage.margin_bytes, stage.reserve_bytes
        budget = min(budget, stage.free_bytes - margin - reserve)
    if budget <= 0:
        right = (
            f"bytes free leave nothing after a margin of {format_gib(margin)} GiB and a reserve "
            f"of {format_gib(reserve)} GiB"
        )
        raise BadInput(f"device {device.name}", memory.free, right)
    _say(worker, request, device, plan, (budget, margin, reserve))
    worker.requested_memory = budget


def _say(
    worker: Any,
    request: PlanRequest,
    device: Device,
    plan: Plan | None,
    sizes: tuple[int, int, int],
) -> None:
    """One line per stage; a warning when it gets less than was asked for. sizes: bytes of budget,
    margin and reserve."""
    budget, margin, reserve = map(format_gib, sizes)
    total, free = format_gib(device.memory.total), format_gib(device.memory.free)
    if request.kv_memory is not None:
        asked = request.kv_memory[0]
        got = asked if plan is None else plan.stages[worker.rank].kv_available_bytes
        less = got < asked
        bound = (
            f"of that {format_gib(got)} for the cache, --kv-cache-memory-bytes asks for "
            f"{format_gib(asked)}"
        )
    else:
        fraction = request.gpu_memory_utilization or 0.0
        asked = int(device.memory.total * fraction)
        less = sizes[0] < asked
        bound = f"--gpu-memory-utilization {fraction:g} alone would be {format_gib(asked)}"
    say = logger.warning if less else logger.info
    say(
        "arcpp: stage %d may take %s GiB of %s (%s of %s free, margin %s, reserve %s); %s",
        *(worker.rank, budget, device.name, free, total, margin, reserve, bound),
    )


def with_explicit_cache(request: PlanRequest, plan: Plan) -> PlanRequest:
    """``request`` with its explicit cache (--kv-cache-memory-bytes, one size for all stages)
    bounded by what ``plan``, made without it, leaves on each device."""
    assert request.kv_memory is not None
    (asked,) = request.kv_memory
    given = tuple(min(asked, max(0, stage.kv_available_bytes)) for stage in plan.stages)
    return replace(request, kv_memory=given, partition=plan.partition.counts)


def cache_share(plan: Plan | None, rank: int, measured: int, *, explicit: bool) -> int:
    """KV bytes for this stage: as the host measured, at most what the plan gives where that is
    the bound.

    measured: bytes. explicit: they are not measured but ``--kv-cache-memory-bytes``. vLLM gives
    every worker the same fraction of its device; on a device with several stages (the CPU) those
    fractions would add up to more memory than there is.
    """
    if plan is None:
        return measured
    stage = plan.stages[rank]
    shared = sum(other.device == stage.device for other in plan.stages) > 1
    if not shared and not (explicit and not current_platform.is_cpu()):
        return measured
    if stage.kv_available_bytes < measured:
        logger.info(
            "arcpp: stage %d: Available KV cache memory: %s GiB (%d bytes) of %s GiB, by the plan",
            rank,
            format_gib(stage.kv_available_bytes),
            stage.kv_available_bytes,
            format_gib(measured),
        )
    return min(measured, stage.kv_available_bytes)


def _check_explicit_on_cpu(request: PlanRequest, device: Device, plan: Plan | None) -> None:
    """Refuse an explicit cache beyond the memory of the processor, which vLLM takes as given.

    vLLM compares it with what is left after weights are read, per worker (cpu_worker.CPUWorker.
    determine_available_memory); that stages of one node take it together, it never sees. The same
    on every rank. Raises BadInput.
    """
    if request.kv_memory is None:
        return
    asked, free = request.kv_memory[0], device.memory.free
    there = [] if plan is None else [s for s in plan.stages if s.device == device.name]
    weights = sum(stage.weights_bytes for stage in there)
    if asked <= free - weights and sum(stage.total_bytes for stage in there) <= free:
        return
    left = free - weights - sum(stage.workspace_bytes for stage in there)
    most = left // max(1, len(there))
    fits = f"at most {most} fit" if most > 0 else "none fits"
    stages = f"{len(there)} stages" if len(there) > 1 else "a stage"
    right = (
        f"bytes for each cache do not fit: {device.name} has {format_gib(free)} GiB free for "
        f"{stages} with {format_gib(weights)} GiB of weights; {fits}"
    )
    raise BadInput("--kv-cache-memory-bytes or VLLM_CPU_KVCACHE_SPACE", asked, right)


def _leave_free_on_cpu(worker: Any, settings: Settings, plan: Plan | None) -> None:
    """Lower vLLM's fraction to what the settings margin and reserve leave, never raise it."""
    if plan is None:
        return
    stage = plan.stages[worker.rank]
    if settings.margin is None and stage.device not in settings.reserve:
        return
    requested = _require(worker, "requested_cpu_memory", "the settings margin and reserve")
    limit = stage.free_bytes - stage.margin_bytes - stage.reserve_bytes
    limit += psutil.Process().memory_info().rss  # the worker subtracts what it holds
    if limit < requested:
        worker.requested_cpu_memory = limit


def _require(worker: Any, name: str, who: str) -> int:
    value = getattr(worker, name, None)
    if value is None:
        lacking = (f"the worker's {name} is gone, which {who} must set",)
        raise HostMismatch("vLLM", vllm_version(), lacking, SUPPORTED)
    return int(value)
