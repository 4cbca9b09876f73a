"""Why the plan is what it is: what one more layer either way would do at each cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from .devices import Device
from .errors import BadInput, DoesNotFit
from .partition import Partition
from .plan import Plan
from .planner import Planner, make_plan
from .profile.model import ModelProfile
from .request import PlanRequest
from .units import format_gib


@dataclass(frozen=True)
class Alternative:
    """A neighbour of the plan. cut: between stages ``cut`` and ``cut + 1``. moved: 1 when the
    earlier stage gets one layer more, -1 when it gets one less. Sizes are None where the
    neighbour does not fit; reason then says why."""

    cut: int
    moved: int
    partition: Partition
    num_blocks: int | None
    kv_cache_tokens: int | None
    max_model_len: int | None
    decode_tokens_per_s_limit: float | None
    reason: str | None

    def to_json(self) -> dict[str, Any]:
        """For ``arcpp plan --explain --json``."""
        return {
            "cut": self.cut,
            "moved": self.moved,
            "partition": list(self.partition.counts),
            "fits": self.reason is None,
            "num_blocks": self.num_blocks,
            "kv_cache_tokens": self.kv_cache_tokens,
            "max_model_len": self.max_model_len,
            "decode_tokens_per_s_limit": self.decode_tokens_per_s_limit,
            "reason": self.reason,
        }


def alternatives(
    profile: ModelProfile,
    devices: Sequence[Device],
    request: PlanRequest,
    plan: Plan,
    planner: Planner = make_plan,
) -> tuple[Alternative, ...]:
    """The neighbours of ``plan``: each cut moved by one layer either way. planner: who planned."""
    found = []
    for cut in range(len(plan.partition.counts) - 1):
        for moved in (1, -1):
            counts = list(plan.partition.counts)
            counts[cut] += moved
            counts[cut + 1] -= moved
            if min(counts[cut], counts[cut + 1]) >= 1:
                partition = Partition(tuple(counts))
                changed = replace(request, partition=partition.counts, brief=True)
                try:
                    neighbour, reason = planner(profile, tuple(devices), changed), None
                except DoesNotFit as error:
                    neighbour = None
                    reason = f"stage {error.stage} lacks {error.missing_bytes} bytes"
                except BadInput as error:
                    neighbour, reason = None, str(error)
                found.append(_alternative(cut, moved, partition, neighbour, reason))
    return tuple(found)


def _alternative(
    cut: int, moved: int, partition: Partition, plan: Plan | None, reason: str | None
) -> Alternative:
    if plan is None:
        return Alternative(cut, moved, partition, None, None, None, None, reason)
    return Alternative(
        cut,
        moved,
        partition,
        plan.num_blocks,
        plan.kv_cache_tokens,
        plan.max_model_len,
        plan.decode_tokens_per_s_limit,
        None,
    )


def explain_lines(plan: Plan, neighbours: Sequence[Alternative]) -> list[str]:
    """Lines of text: what binds and why, then every neighbour."""
    stage = plan.stages[plan.binding_stage]
    lines = [
        f"stage {plan.binding_stage} ({stage.device}) binds: "
        f"{format_gib(stage.kv_available_bytes)} GiB for its pool at {stage.bytes_per_block:,} "
        f"bytes a block are {stage.num_blocks:,} blocks"
    ]
    for index, spare in enumerate(plan.stages):
        if index != plan.binding_stage:
            lines.append(f"  stage {index} ({spare.device}) could hold {spare.num_blocks:,}")
    if plan.blocks_per_request:
        lines.append(
            f"a request of {plan.effective_len:,} tokens takes {plan.blocks_per_request:,} blocks, "
            f"{plan.state_blocks_per_request} of them recurrent state"
        )
    for other in neighbours:
        change = f"{'+' if other.moved > 0 else '-'}1 layer on stage {other.cut}"
        if other.reason is not None:
            lines.append(f"{change} ({other.partition}): does not fit, {other.reason}")
        else:
            lines.append(
                f"{change} ({other.partition}): {other.kv_cache_tokens:,} KV tokens, longest "
                f"request {other.max_model_len:,}"
            )
    return lines
