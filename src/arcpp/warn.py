"""What a plan that fits should still say: each warning once, with numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from .memory.layout import CacheLayout
from .memory.openvino import ALLOCATION_CAP
from .memory.workspace import vision_bytes
from .partition import Partition
from .plan import StagePlan
from .profile.model import ModelProfile
from .request import PlanRequest
from .units import format_gib

#: Alchemist cards, whose drivers refuse single allocations of 4 GiB.
_CAPPED = re.compile(r"\bA(?:310|380|580|750|770)", re.IGNORECASE)


def plan_warnings(
    profile: ModelProfile,
    layout: CacheLayout,
    request: PlanRequest,
    partition: Partition,
    stages: Sequence[StagePlan],
) -> tuple[str, ...]:
    """Warnings about a plan, in the order a table prints them."""
    found = [*_memory_warnings(stages)]
    if request.host == "vllm":
        found += _vllm_warnings(profile, layout, request, partition, stages)
    return tuple(dict.fromkeys(found))


def _memory_warnings(stages: Sequence[StagePlan]) -> Iterator[str]:
    for stage in stages:
        if stage.unused_bytes < 0:
            yield (
                f"{stage.device}: the given KV memory and the weights exceed its free memory by "
                f"{format_gib(-stage.unused_bytes)} GiB"
            )


def _vllm_warnings(
    profile: ModelProfile,
    layout: CacheLayout,
    request: PlanRequest,
    partition: Partition,
    stages: Sequence[StagePlan],
) -> Iterator[str]:
    crooked = partition.misaligned(profile.period)
    if crooked and profile.hybrid:
        yield (
            f"{crooked} of {len(stages) - 1} cuts not on a multiple of {profile.period} layers: "
            "the cache pool pads the difference"
        )
    if profile.hybrid and request.spec_tokens and request.caching(profile):
        yield (
            "prefix caching with draft tokens corrupts hybrids in stock vLLM: "
            "add --no-prefix-caching"
        )
    on_cpu = all(stage.device.lower().startswith("cpu") for stage in stages)
    vision = vision_bytes(profile)
    if vision and request.kv_memory is None and request.platform != "cpu" and not on_cpu:
        yield (
            f"not counted: vLLM tries the largest image at start, about {format_gib(vision)} GiB "
            "on stage 0 (--skip-mm-profiling avoids it)"
        )
    for stage in stages:
        pool = stage.kv_bytes + stage.state_bytes
        if (
            request.vllm().one_allocation
            and pool >= ALLOCATION_CAP
            and _CAPPED.search(stage.device)
        ):
            yield (
                f"{stage.device}: {layout.label} allocates its {format_gib(pool)} GiB pool at "
                "once, and drivers of this card refuse 4 GiB or more"
            )
