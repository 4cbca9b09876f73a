"""What a chain was made for: sizes an engine schedules by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from arcpp.errors import BadInput
from arcpp.plan import Plan

from .names import KV_TABLES, LOGITS, STATE_TABLES
from .options import ChainOptions
from .planning import useful_blocks
from .stage import CompiledStage


@dataclass(frozen=True)
class ChainProfile:
    """What a chain was made for.

    layer_kinds: "attention", "linear_attention", "both" or "none", by layer. block_size: tokens per
    KV block as a StepBatch counts them (of the stage with the largest). kv_blocks: how many there
    are. state_blocks: places of the state tables, the zero block included; 0 in dense models.
    max_sequences, max_batch_tokens: what a step is preallocated for; larger ones run, and allocate.
    """

    vocab_size: int
    layer_kinds: tuple[str, ...]
    block_size: int
    kv_blocks: int
    state_blocks: int
    max_sequences: int
    max_batch_tokens: int
    microbatches: int

    @property
    def hybrid(self) -> bool:
        """Whether a StepBatch needs state blocks."""
        return self.state_blocks > 0


def layer_kind(tables: Sequence[str]) -> str:
    """What a layer keeps, by the names of its tables."""
    attention = any(name.startswith(KV_TABLES) for name in tables)
    linear = any(name.startswith(STATE_TABLES) for name in tables)
    if attention and linear:
        return "both"
    return "attention" if attention else "linear_attention" if linear else "none"


def chain_profile(
    stages: Sequence[CompiledStage],
    kinds: tuple[str, ...],
    options: ChainOptions,
    plan: Plan | None,
) -> ChainProfile:
    """Sizes from the compiled stages, the options, and the plan where options say nothing.

    kinds: of the layers. Raises BadInput for devices whose blocks do not fit together.
    """
    sizes = [stage.block_tokens for stage in stages]
    block = max((size for size in sizes if size is not None), default=1)
    for stage, size in zip(stages, sizes, strict=True):
        if size is not None and block % size:
            raise BadInput(f"device {stage.device}", size, f"tokens a block do not divide {block}")
    sequences = options.max_sequences or (plan.max_num_seqs if plan is not None else 4)
    blocks = options.kv_blocks
    if blocks is None:
        assert plan is not None
        blocks = max(1, useful_blocks(plan) * plan.block_tokens // block)
    hybrid = any(kind in ("linear_attention", "both") for kind in kinds)
    last = stages[-1].outputs[LOGITS].get_partial_shape()
    return ChainProfile(
        vocab_size=int(last[len(last) - 1].get_length()),
        layer_kinds=kinds,
        block_size=block,
        kv_blocks=blocks,
        state_blocks=(options.state_blocks or sequences + 1) if hybrid else 0,
        max_sequences=sequences,
        max_batch_tokens=options.max_batch_tokens,
        microbatches=options.microbatches,
    )
