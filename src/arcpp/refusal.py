"""Why nothing fits: which stage, how much it lacks, and the nearest setting that fits."""

from __future__ import annotations

from dataclasses import replace

from . import solver
from .errors import BadInput, DoesNotFit, StageNeed
from .memory.layout import UNBOUNDED
from .partition import Partition, Stage
from .planner import Planning
from .problem import Need
from .request import PlanRequest
from .units import MiB, format_gib


def refusal(planning: Planning) -> DoesNotFit:
    """The error for a planning task whose find() found nothing. May raise BadInput instead."""
    partition = Partition(planning.request.partition or _least_short(planning))
    stage, missing = _shortest(planning, partition)
    lack = ""
    if missing <= 0:  # the memory is there, but not in the pieces that are needed
        stage, missing, lack = _too_large(planning, partition)
    device = planning.devices[stage.index].name
    nearest = nearest_setting(planning)
    length = planning.wanted or 1
    end = f"; nearest that fits: {nearest}" if nearest else "; no nearby setting fits"
    message = (
        f"does not fit: stage {stage.index} ({device}, layers {stage.low} to {stage.high - 1}) "
        f"lacks {format_gib(missing)} GiB ({missing} bytes){lack} for one request of {length} "
        f"token{'' if length == 1 else 's'}{end}"
    )
    return DoesNotFit(
        message,
        stage=stage.index,
        device=device,
        missing_bytes=missing,
        nearest=nearest,
        needs=_needs(planning, partition),
    )


def _too_large(planning: Planning, partition: Partition) -> tuple[Stage, int, str]:
    """The stage whose largest single allocation exceeds its device's limit most, by how much,
    and that limit in words."""
    found = []
    for stage in partition.stages:
        limit = planning.request.allocation_limit(planning.devices[stage.index])
        if limit is not None:
            size = planning.layout.largest_allocation(
                stage.index,
                stage.low,
                stage.high,
                planning.least_blocks,
                planning.request.sequences,
            )
            words = f" in one allocation, which may have {limit.size} ({limit.source}),"
            found.append((size - limit.size, -stage.index, words))
    missing, index, words = max(found)
    return partition.stages[-index], missing, words


def _needs(planning: Planning, partition: Partition) -> tuple[StageNeed, ...]:
    """What every stage of ``partition`` would need for one request of the wanted length."""
    problem, costs, least = planning.problem(), planning.costs, planning.least_blocks
    rows = []
    for stage in partition.stages:
        use = costs.use(stage.index, stage.low, stage.high)
        per_block = planning.layout.bytes_per_block(stage.index, stage.low, stage.high)
        beside = planning.request.kv_memory is not None  # budgets are for the cache alone
        rows.append(
            StageNeed(
                device=planning.devices[stage.index].name,
                low=stage.low,
                high=stage.high,
                weights=0 if beside else use.weights,
                workspace=0 if beside else use.workspace,
                cache=use.state + least * per_block,
                budget=problem.budgets[problem.devices[stage.index]],
            )
        )
    return tuple(rows)


def _least_short(planning: Planning) -> tuple[int, ...]:
    """The partition whose worst device lacks least."""
    least = planning.least_blocks
    low, high = 0, MiB
    while _any(planning, high, least) is None:
        low, high = high, high * 2
        if high > 2**120:
            right = "stages cannot each be given a layer with a cache"
            raise BadInput("devices", len(planning.devices), right)
    while high - low > max(1, high >> 12):
        middle = (low + high) // 2
        if _any(planning, middle, least) is None:
            low = middle
        else:
            high = middle
    found = _any(planning, high, least)
    assert found is not None
    return found


def _any(planning: Planning, extra: int, least: int) -> tuple[int, ...] | None:
    """A partition with ``extra`` bytes on every device, whatever single allocations are allowed."""
    problem = planning.problem(extra)

    def need(stage: int, low: int, high: int) -> Need | None:
        limited = problem.need(stage, low, high)
        return None if limited is None else replace(limited, limit=UNBOUNDED)

    return solver.cheapest(replace(problem, need=need), least)


def _shortest(planning: Planning, partition: Partition) -> tuple[Stage, int]:
    """The stage whose device lacks most for the least blocks, and by how much (0: nothing)."""
    problem, least = planning.problem(), planning.least_blocks
    lacking: dict[int, int] = {}
    for stage in partition.stages:
        need = planning.costs.need(stage.index, stage.low, stage.high)
        if need is None:
            right = f"gives stage {stage.index} no layer with a cache, which vLLM cannot run"
            what = "VLLM_PP_LAYER_PARTITION" if planning.request.inside_host else "--partition"
            raise BadInput(what, str(partition), right)
        owner = problem.devices[stage.index]
        used = need.fixed + least * need.per_block
        lacking[owner] = lacking.get(owner, -problem.budgets[owner]) + used
    worst = max(lacking, key=lambda owner: lacking[owner])
    index = max(i for i, owner in enumerate(problem.devices) if owner == worst)
    return partition.stages[index], max(0, lacking[worst])


def nearest_setting(planning: Planning) -> str | None:
    """The first change of one setting that makes it fit, as an option to paste, or None."""
    for text, changed in _variations(planning):
        other = Planning(planning.profile, planning.devices, changed)
        partition = other.find()
        if partition is not None:
            plan = other.describe(partition)
            return text.format(length=plan.max_model_len, partition=partition)
    return None


def _variations(planning: Planning) -> list[tuple[str, PlanRequest]]:
    """Requests near this one, the least painful first."""
    request, found = planning.request, []
    inside = request.inside_host
    if request.host == "openvino" and not request.large_allocations:
        found.append(("--large-allocations", replace(request, large_allocations=True)))
    if planning.wanted is not None:
        found.append(("--max-model-len {length}", replace(request, max_model_len="auto")))
    if request.partition is not None:
        option = "VLLM_PP_LAYER_PARTITION={partition}" if inside else "--partition {partition}"
        found.append((option, replace(request, partition=None)))
    if request.kv_memory is not None:
        return found
    compact = "fp8" if request.host == "vllm" else "u4"
    if request.kv_cache_dtype == "auto":
        found.append((f"--kv-cache-dtype {compact}", replace(request, kv_cache_dtype=compact)))
    tokens = max(512, request.fewest_tokens)
    if request.batched_tokens > tokens:
        fewer = replace(request, max_num_batched_tokens=tokens)
        found.append((f"--max-num-batched-tokens {tokens}", fewer))
    if request.sequences > 16:
        found.append(("--max-num-seqs 16", replace(request, max_num_seqs=16)))
    if request.spec_tokens:
        option = "without --speculative-config" if inside else "--spec-tokens 0"
        found.append((option, replace(request, spec_tokens=0)))
    if request.host == "vllm" and (request.gpu_memory_utilization or 0.92) < 0.98:
        found.append(
            ("--gpu-memory-utilization 0.98", replace(request, gpu_memory_utilization=0.98))
        )
    if request.margin:
        option = "without the setting margin" if inside else "without --margin"
        found.append((option, replace(request, margin=None)))
    if request.reserves:
        option = "without the setting reserve" if inside else "without --reserve"
        found.append((option, replace(request, reserves={})))
    return found
