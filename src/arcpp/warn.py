"""What a plan that fits should still say: each warning once, with numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .costs import assumed_bandwidths, unknown_bandwidths
from .devices import AllocationLimit, Device, is_cpu
from .memory.layout import CacheLayout
from .memory.vllm import KvLayout
from .memory.workspace import vision_bytes
from .plan import Plan, StagePlan
from .profile.model import ModelProfile
from .request import PlanRequest
from .units import format_gib


@dataclass(frozen=True)
class Findings:
    """What warnings are made from. plan: without them. faster: the plan of the goal decode where
    it leaves fewer layers to a processor beside cards, else None."""

    profile: ModelProfile
    layout: CacheLayout
    request: PlanRequest
    devices: tuple[Device, ...]
    plan: Plan
    faster: Plan | None = None


def plan_warnings(found: Findings) -> tuple[str, ...]:
    """Warnings about a plan, in the order a table prints them."""
    warnings = [*_ignored(found), *_memory(found), *_shared(found)]
    warnings += [*_processor(found), *_speeds(found)]
    if found.request.host == "vllm":
        warnings += _vllm(found)
    warnings += _pieces(found)
    return tuple(dict.fromkeys(warnings))


def _ignored(found: Findings) -> Iterator[str]:
    """Options that were given and change nothing, because the host is another or overrules them."""
    request, layout = found.request, found.layout
    if request.host == "vllm":
        if request.large_allocations:
            yield "--large-allocations is OpenVINO's and changes nothing for --host vllm"
        asked = request.mamba_cache_mode
        if not isinstance(layout, KvLayout) or asked is None or not found.profile.hybrid:
            return
        mode, caching = layout.options.mamba_cache_mode, layout.options.prefix_caching
        if mode != asked:
            state = "on" if caching else "off"
            yield f"--mamba-cache-mode {asked}: with prefix caching {state} vLLM runs mode {mode}"
        return
    given = {
        "--block-size": request.block_size,
        "--block-align": request.block_align,
        "--gpu-memory-utilization": request.gpu_memory_utilization,
        "--mamba-cache-mode": request.mamba_cache_mode,
        "--prefix-caching": request.prefix_caching,
    }
    names = [name for name, value in given.items() if value is not None]
    if names:
        yield (
            f"vLLM's, and without effect on OpenVINO (blocks of {layout.block_tokens} "
            f"tokens): {', '.join(names)}"
        )


def _memory(found: Findings) -> Iterator[str]:
    for stage in found.plan.stages:
        if stage.unused_bytes < 0:
            yield (
                f"{stage.device}: the given KV memory and the weights exceed its free memory by "
                f"{format_gib(-stage.unused_bytes)} GiB"
            )


def _shared(found: Findings) -> Iterator[str]:
    """Stages on one card: meant by some, a name written twice by others."""
    names = [device.name for device in found.devices]
    for name in dict.fromkeys(names):
        if names.count(name) > 1 and not is_cpu(name):
            yield (
                f"{name} is named {names.count(name)} times: its stages share one card; cards of "
                f"one kind need names of their own ({name}-a, {name}-b)"
            )


def mixes_processor(devices: tuple[Device, ...]) -> bool:
    """Whether some stages run on a processor and others on cards."""
    return len({device.is_cpu for device in devices}) == 2


def _processor(found: Findings) -> Iterator[str]:
    """A processor beside cards: slow, and not for vLLM."""
    if not mixes_processor(found.devices):
        return
    if found.request.host == "vllm":
        yield (
            "vLLM runs all stages on one kind of device: a stage on the CPU beside cards needs "
            "--host openvino"
        )
    plan, faster = found.plan, found.faster
    if faster is None:
        return
    layers = len(found.profile.layers)
    slow, quick = layers_on(plan.stages), layers_on(faster.stages)
    if plan.decode_tokens_per_s_limit is None:
        change = f"{format_gib(_read(plan.stages))} GiB of host memory read a token become "
        change += format_gib(_read(faster.stages))
    else:
        change = f"at most {plan.decode_tokens_per_s_limit} tokens/s become "
        change += f"{faster.decode_tokens_per_s_limit}"
    yield (
        f"{slow} of {layers} layers are on the CPU, which has most room for the KV cache: with "
        f"--maximize decode ({faster.partition}) {quick} are, {change}, and the KV cache holds "
        f"{faster.kv_cache_tokens:,} tokens instead of {plan.kv_cache_tokens:,}"
    )


def layers_on(stages: tuple[StagePlan, ...]) -> int:
    """Layers of ``stages`` that are on a processor."""
    return sum(stage.high - stage.low for stage in stages if stage.on_cpu)


def _read(stages: tuple[StagePlan, ...]) -> int:
    return sum(stage.active_bytes for stage in stages if stage.on_cpu)


def _speeds(found: Findings) -> Iterator[str]:
    """Bandwidths that a choice was based on and nobody gave."""
    unknown = unknown_bandwidths(found.devices)
    chosen = found.request.maximize != "context" and found.request.partition is None
    if not unknown or not chosen or len(found.devices) == 1:
        return
    speeds = zip(found.devices, assumed_bandwidths(found.devices), strict=True)
    assumed = {device.name: speed for device, speed in speeds if device in unknown}
    each = ", ".join(f"{name} {speed:g}" for name, speed in assumed.items())
    yield f"bandwidth assumed to compare splits (GB/s): {each}; write it as NAME=TOTAL@GBPS"


def _vllm(found: Findings) -> Iterator[str]:
    profile, request, plan = found.profile, found.request, found.plan
    crooked = plan.partition.misaligned(profile.period)
    if crooked and profile.hybrid:
        yield (
            f"{crooked} of {len(plan.stages) - 1} cuts not on a multiple of {profile.period} "
            "layers: the cache pool pads the difference"
        )
    if profile.hybrid and request.spec_tokens and request.caching(profile):
        yield (
            "prefix caching with draft tokens corrupts hybrids in stock vLLM: "
            "add --no-prefix-caching"
        )
    on_cpu = all(stage.on_cpu for stage in plan.stages)
    vision = vision_bytes(profile)
    if vision and request.kv_memory is None and request.platform != "cpu" and not on_cpu:
        yield (
            f"not counted: vLLM tries the largest image at start, about {format_gib(vision)} GiB "
            "on stage 0 (--skip-mm-profiling avoids it)"
        )


def _pieces(found: Findings) -> Iterator[str]:
    """Single allocations that are larger than the driver of a device is known to allow."""
    pools: list[tuple[int, str]] = []
    for stage, device in zip(found.plan.stages, found.devices, strict=True):
        limit = found.request.allocation_limit(device)
        if limit is None:
            continue
        for role in stage.roles:
            size = _matrix(found.profile, role)
            if size > limit.size:
                yield (
                    f"{device.name}: {role} is one allocation of {format_gib(size)} GiB, and "
                    f"{_allowed(limit)}"
                )
        pool = _pool(found, stage, limit)
        pools += [pool] if pool is not None else []
    for number, (_, text) in enumerate(pools, start=1):
        last = number == len(pools)
        yield f"{text}: {_with_kv_memory(found, min(pools)[0])}" if last else text


def _matrix(profile: ModelProfile, role: str) -> int:
    """Bytes of ``role`` where it is a single matrix, else 0."""
    if role not in ("embed", "lm_head"):
        return 0
    return profile.roles.get(role, profile.roles["embed"])


def _pool(found: Findings, stage: StagePlan, limit: AllocationLimit) -> tuple[int, str] | None:
    """KV memory with which vLLM's largest allocation on ``stage`` is small enough, and what is
    wrong now; None where nothing is. OpenVINO's plans respect the limit."""
    layout, index = found.layout, found.plan.stages.index(stage)
    if found.request.host != "vllm":
        return None

    def largest(blocks: int) -> int:
        return layout.largest_allocation(
            index, stage.low, stage.high, blocks, found.request.sequences
        )

    size = largest(found.plan.num_blocks)
    if size <= limit.size:
        return None
    memory = limit.size // largest(1) * stage.bytes_per_block
    return memory, (
        f"{stage.device}: {layout.label} makes one allocation of {format_gib(size)} GiB for its "
        f"cache, and {_allowed(limit)}"
    )


def _allowed(limit: AllocationLimit) -> str:
    return f"its driver allows {format_gib(limit.size)} GiB at once ({limit.source})"


def _with_kv_memory(found: Findings, memory: int) -> str:
    """What ``--kv-cache-memory-bytes`` of that many bytes on every stage makes of the plan."""
    layout, plan = found.layout, found.plan
    blocks = min(memory // stage.bytes_per_block for stage in plan.stages)
    longest = layout.longest_request(blocks, plan.max_model_len)
    length = min(plan.effective_len, longest)
    tokens = layout.capacity_tokens(blocks, length)
    option = f"--kv-cache-memory-bytes {memory}"
    if length < plan.effective_len:
        option += f" --max-model-len {length}"
    return f"{option} makes it fit, with {tokens:,} KV tokens"
