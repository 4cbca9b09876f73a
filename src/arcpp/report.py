"""What people read: the plan as a table of at most 80 columns."""

from __future__ import annotations

import io

from .plan import NOT_GIVEN, Plan
from .units import format_gib

WIDTH = 80


def plan_text(plan: Plan) -> str:
    """``plan`` as text: a table of stages in GiB, then context, concurrency and limits."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for name in ("stage", "device", "layers"):
        table.add_column(name, overflow="fold")
    for name in ("weights", "KV", "state", "work", "margin", "total", "free", "unused"):
        table.add_column(name, justify="right")
    for index, stage in enumerate(plan.stages):
        sizes = [
            stage.weights_bytes,
            stage.kv_bytes,
            stage.state_bytes,
            stage.workspace_bytes,
            stage.margin_bytes + stage.reserve_bytes,
            stage.total_bytes,
            stage.free_bytes,
            stage.unused_bytes,
        ]
        shown = [format_gib(size) for size in sizes]
        if stage.memory_source == NOT_GIVEN:
            shown[4] = shown[6] = shown[7] = "-"
        table.add_row(str(index), stage.device, f"{stage.low}-{stage.high - 1}", *shown)
    buffer = io.StringIO()
    console = Console(
        file=buffer, width=WIDTH, color_system=None, force_terminal=False, highlight=False
    )
    console.print(table)
    for line in _lines(plan):
        console.print(line, markup=False, soft_wrap=False)
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines())


def _lines(plan: Plan) -> list[str]:
    binding = plan.stages[plan.binding_stage]
    lines = ["(GiB; margin includes what is reserved for others)"]
    for index, stage in enumerate(plan.stages):
        if stage.roles:
            lines.append(f"stage {index} also holds: {', '.join(stage.roles)}")
    lines += [
        f"host {plan.host}, partition {plan.partition}",
        f"longest request {plan.max_model_len:,} tokens; KV cache {plan.kv_cache_tokens:,} tokens "
        f"at max-model-len {plan.effective_len:,}",
        f"{plan.num_blocks:,} blocks of {plan.block_tokens} tokens"
        f"{', one of them null' if plan.null_blocks else ''}; at most {plan.max_num_seqs} "
        "requests at once",
        f"binding: stage {plan.binding_stage} ({binding.device}), "
        f"{binding.bytes_per_block:,} bytes a block",
    ]
    if plan.decode_tokens_per_s_limit is not None:
        lines.append(f"decode limit {plan.decode_tokens_per_s_limit} tokens/s (weights read)")
    return lines + [f"warning: {warning}" for warning in plan.warnings]
