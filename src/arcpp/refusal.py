"""Why nothing fits: which stage, how much it lacks, and the nearest setting that fits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

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
    if planning.request.brief and planning.request.partition is None:
        return DoesNotFit("does not fit", stage=None, device=None, missing_bytes=0, nearest=None)
    partition = Partition(planning.request.partition or _least_short(planning))
    stage, missing = _shortest(planning, partition)
    lack = ""
    if missing <= 0:  # the memory is there, but not in the pieces that are needed
        stage, missing, lack = _too_large(planning, partition)
    device = planning.devices[stage.index].name
    nearest = None if planning.request.brief else nearest_setting(planning)
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
    """The partition whose worst device lacks least, whatever single allocations are allowed."""
    least, problem = planning.least_blocks, _unlimited(planning.problem())

    def any_with(extra: int) -> tuple[int, ...] | None:
        budgets = tuple(budget + extra for budget in problem.budgets)
        return solver.cheapest(replace(problem, budgets=budgets), least)

    low, high = 0, MiB
    while any_with(high) is None:
        low, high = high, high * 2
        if high > 2**120:
            right = "stages cannot each be given a layer with a cache"
            raise BadInput("devices", len(planning.devices), right)
    while high - low > max(1, high >> 12):
        middle = (low + high) // 2
        if any_with(middle) is None:
            low = middle
        else:
            high = middle
    found = any_with(high)
    assert found is not None
    return found


def _unlimited(problem: solver.Problem) -> solver.Problem:
    """``problem`` without limits on single allocations; needs are remembered, as it is asked for
    the same ones again and again."""

    @cache
    def need(stage: int, low: int, high: int) -> Need | None:
        limited = problem.need(stage, low, high)
        return None if limited is None else replace(limited, limit=UNBOUNDED)

    return replace(problem, need=need)


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


@dataclass(frozen=True)
class _Change:
    """One setting changed. text: as an option to paste, with places for what the plan says; one
    that begins with "without" takes an option away. changes: fields of the request."""

    text: str
    changes: dict[str, Any]


def nearest_setting(planning: Planning) -> str | None:
    """The least that makes it fit, as options to paste, or None: the first setting whose change
    alone does, else the fewest of the first that do together."""
    changes = _changes(planning)
    for change in changes:
        if _fits(planning, [change]) is not None:
            return _pasted(planning, [change])
    for count in range(2, len(changes) + 1):
        if _fits(planning, changes[:count]) is not None:
            return _pasted(planning, _needed(planning, changes[:count]))
    return None


def _needed(planning: Planning, changes: list[_Change]) -> list[_Change]:
    """``changes``, which fit together, without those that may be left out."""
    for change in changes:
        fewer = [other for other in changes if other is not change]
        if _fits(planning, fewer) is not None:
            changes = fewer
    return changes


def _changed(planning: Planning, changes: list[_Change]) -> PlanRequest:
    merged: dict[str, Any] = {}
    for change in changes:
        merged.update(change.changes)
    return replace(planning.request, **merged)


def _fits(planning: Planning, changes: list[_Change]) -> Partition | None:
    try:
        changed = _changed(planning, changes)
        return Planning(planning.profile, planning.devices, changed).find()
    except BadInput:  # this host does not have that setting for this model
        return None


def _pasted(planning: Planning, changes: list[_Change]) -> str:
    other = Planning(planning.profile, planning.devices, _changed(planning, changes))
    partition = other.find()
    assert partition is not None
    length = other.describe(partition).max_model_len
    texts = [change.text.format(length=length, partition=partition) for change in changes]
    taken = sorted(texts, key=lambda text: text.startswith("without"))  # those to paste come first
    return " ".join(taken)


def _changes(planning: Planning) -> list[_Change]:
    """Changes of one setting each, the least painful first."""
    request, found = planning.request, []
    inside = request.inside_host
    if request.host == "openvino" and not request.large_allocations:
        found.append(_Change("--large-allocations", {"large_allocations": True}))
    if planning.wanted is not None:
        found.append(_Change("--max-model-len {length}", {"max_model_len": "auto"}))
    if request.partition is not None:
        option = "VLLM_PP_LAYER_PARTITION={partition}" if inside else "--partition {partition}"
        found.append(_Change(option, {"partition": None}))
    if request.kv_memory is not None:
        return found
    compact = "fp8" if request.host == "vllm" else "u4"
    if request.kv_cache_dtype == "auto":
        found.append(_Change(f"--kv-cache-dtype {compact}", {"kv_cache_dtype": compact}))
    return found + _of_workspace(request) + _of_budget(request)


def _of_workspace(request: PlanRequest) -> list[_Change]:
    found, tokens = [], max(512, request.fewest_tokens)
    if request.batched_tokens > tokens:
        option = f"--max-num-batched-tokens {tokens}"
        found.append(_Change(option, {"max_num_batched_tokens": tokens}))
    if request.sequences > 16:
        found.append(_Change("--max-num-seqs 16", {"max_num_seqs": 16}))
    if request.spec_tokens:
        option = "without --speculative-config" if request.inside_host else "--spec-tokens 0"
        found.append(_Change(option, {"spec_tokens": 0}))
    return found


def _of_budget(request: PlanRequest) -> list[_Change]:
    found, inside = [], request.inside_host
    if request.host == "vllm" and (request.gpu_memory_utilization or 0.92) < 0.98:
        option = "--gpu-memory-utilization 0.98"
        found.append(_Change(option, {"gpu_memory_utilization": 0.98}))
    if request.margin:
        option = "without the setting margin" if inside else "without --margin"
        found.append(_Change(option, {"margin": None}))
    if request.reserves:
        option = "without the setting reserve" if inside else "without --reserve"
        found.append(_Change(option, {"reserves": {}}))
    return found
