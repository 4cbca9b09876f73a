"""A picture of a plan: one stacked bar per card, drawn and written as SVG by rich."""

from __future__ import annotations

import io
import re
from itertools import pairwise
from pathlib import Path

from .errors import BadInput
from .plan import Plan, StagePlan
from .units import format_gib

_COLUMNS = 60
_PARTS = (
    ("weights", "blue"),
    ("KV", "green"),
    ("state", "cyan"),
    ("workspace", "yellow"),
    ("margin", "magenta"),
    ("unused", "grey50"),
)


def plan_svg(plan: Plan) -> str:
    """``plan`` as an SVG document: per card its free memory, split by what uses it."""
    from rich.console import Console
    from rich.text import Text

    console = Console(file=io.StringIO(), record=True, width=_COLUMNS + 20, force_terminal=True)
    largest = max(stage.free_bytes for stage in plan.stages)
    for device in dict.fromkeys(stage.device for stage in plan.stages):
        stages = [stage for stage in plan.stages if stage.device == device]
        parts = _parts(stages)
        bar = Text()
        for (_, colour), width in zip(_PARTS, _widths(parts, largest), strict=True):
            bar.append(" " * width, style=f"on {colour}")
        layers = ", ".join(f"{stage.low}-{stage.high - 1}" for stage in stages)
        console.print(Text(f"{device}: layers {layers}, {format_gib(stages[0].free_bytes)} GiB"))
        console.print(bar)
        for (name, colour), size in zip(_PARTS, parts, strict=True):
            console.print(Text.assemble(("  ■ ", colour), f"{name:<10}{format_gib(size):>9} GiB"))
    summary = f"{plan.kv_cache_tokens:,} KV tokens, longest request {plan.max_model_len:,}"
    console.print(Text(summary))
    title = f"{plan.host}, partition {plan.partition}"
    # A fixed id keeps the file the same for the same plan.
    drawn = console.export_svg(title=title, unique_id="arcpp-plan")
    return re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL)  # no fonts from the network


def _parts(stages: list[StagePlan]) -> tuple[int, ...]:
    first = stages[0]
    return (
        sum(stage.weights_bytes for stage in stages),
        sum(stage.kv_bytes for stage in stages),
        sum(stage.state_bytes for stage in stages),
        sum(stage.workspace_bytes for stage in stages),
        first.margin_bytes + first.reserve_bytes,
        max(0, first.unused_bytes),
    )


def _widths(parts: tuple[int, ...], largest: int) -> list[int]:
    """Columns per part, rounded on the running sum so that bars of equal cards are equal."""
    ends, total = [0], 0
    for size in parts:
        total += size
        ends.append(round(total * _COLUMNS / largest))
    return [max(0, b - a) for a, b in pairwise(ends)]


def write_svg(plan: Plan, path: Path) -> None:
    """Write :func:`plan_svg` to ``path``. Raises BadInput when it cannot be written."""
    try:
        path.write_text(plan_svg(plan), encoding="utf-8")
    except OSError as error:
        raise BadInput("--svg", str(path), f"cannot be written: {error.strerror}") from None
