"""What people read: the plan as a table of at most 80 columns."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence

from .errors import StageNeed
from .plan import NOT_GIVEN, Plan
from .units import GiB, format_gib

WIDTH = 80
_WIDE = 10_000 * GiB  # a table with one so large is in whole GiB
_OPTION = re.compile(r"(--[a-z][a-z-]*) (?=[^-\s])")
_JOIN = "\ufdd0"  # no character, and no space either: rich breaks at those that do not break, too


def needs_text(needs: Sequence[StageNeed]) -> str:
    """Why a plan was refused, as a table in GiB: what each stage needs at least, and its budget."""
    names = ("weights", "cache", "work", "total", "budget")
    rows = []
    for index, need in enumerate(needs):
        sizes = (need.weights, need.cache, need.workspace, need.total, need.budget)
        shown: list[int | None] = [max(0, size) for size in sizes]
        rows.append((index, need.device, need.low, need.high, shown))
    lines = _table(names, rows)
    return "\n".join([*lines, "(GiB; cache: for one request; stages on a device share its budget)"])


def plan_text(plan: Plan) -> str:
    """``plan`` as text: a table of stages in GiB, then context, concurrency and limits."""
    names = ("weights", "KV", "state", "work", "margin", "total", "free", "unused")
    rows = []
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
        shown: list[int | None] = [*sizes]
        if stage.memory_source == NOT_GIVEN:
            shown[4] = shown[6] = shown[7] = None
        rows.append((index, stage.device, stage.low, stage.high, shown))
    return "\n".join([*_table(names, rows), *wrapped(_lines(plan))])


#: A stage's index, device, layers [low, high) and sizes in bytes; None for what is not known.
_Row = tuple[int, str, int, int, Sequence[int | None]]


def _table(sizes: Sequence[str], rows: Sequence[_Row]) -> list[str]:
    """Lines of a table of stages. Only names of devices are broken, numbers never cut."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("stage", no_wrap=True)
    table.add_column("device", overflow="fold")
    table.add_column("layers", no_wrap=True)
    for name in sizes:
        table.add_column(name, justify="right", no_wrap=True)
    large = any(abs(size) >= _WIDE for row in rows for size in row[4] if size is not None)
    for index, device, low, high, shown in rows:
        cells = ["-" if size is None else _gib(size, whole=large) for size in shown]
        # As text: a name may look like rich's markup.
        table.add_row(str(index), Text(device), f"{low}-{high - 1}", *cells)
    return _printed(table)


def _gib(size: int, *, whole: bool) -> str:
    """``size`` in GiB; ``whole`` where decimals would not leave room for the names."""
    return str(round(size / GiB)) if whole else format_gib(size)


def wrapped(lines: Sequence[str]) -> list[str]:
    """``lines`` broken between words where they are wider than a table, but never between an
    option and its value."""
    from rich.text import Text

    joined = [_OPTION.sub(rf"\1{_JOIN}", line) for line in lines]
    parts = [part for line in joined for part in _printed(Text(line))]
    return [part.replace(_JOIN, " ") for part in parts]


def _printed(what: object) -> list[str]:
    from rich.console import Console

    buffer = io.StringIO()
    console = Console(
        file=buffer, width=WIDTH, color_system=None, force_terminal=False, highlight=False
    )
    console.print(what)
    return [line.rstrip() for line in buffer.getvalue().splitlines()]


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
