"""A picture of a plan: one stacked bar per card, drawn and written as SVG by rich."""

from __future__ import annotations

import io
import re
from itertools import pairwise
from pathlib import Path

from .errors import BadInput
from .plan import NOT_GIVEN, Plan, StagePlan
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
    """``plan`` as an SVG document: per card its free memory, split by what uses it; of a card that
    nobody described what is used."""
    from rich.console import Console
    from rich.text import Text

    console = Console(file=io.StringIO(), record=True, width=_COLUMNS + 20, force_terminal=True)
    names = dict.fromkeys(stage.device for stage in plan.stages)
    cards = {name: [stage for stage in plan.stages if stage.device == name] for name in names}
    sizes = {name: _parts(stages) for name, stages in cards.items()}
    largest = max(sum(parts) for parts in sizes.values())
    for name, stages in cards.items():
        bar = Text()
        for (_, colour), width in zip(_PARTS, _widths(sizes[name], largest), strict=False):
            bar.append(" " * width, style=f"on {colour}")
        console.print(Text(_title(name, stages)))
        console.print(bar)
        for (part, colour), size in zip(_PARTS, sizes[name], strict=False):
            console.print(Text.assemble(("  ■ ", colour), f"{part:<10}{format_gib(size):>9} GiB"))
    summary = f"{plan.kv_cache_tokens:,} KV tokens, longest request {plan.max_model_len:,}"
    console.print(Text(summary))
    title = f"{plan.host}, partition {plan.partition}"
    # A fixed id keeps the file the same for the same plan.
    drawn = console.export_svg(title=title, unique_id="arcpp-plan")
    return re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL)  # no fonts from the network


def _title(name: str, stages: list[StagePlan]) -> str:
    layers = ", ".join(f"{stage.low}-{stage.high - 1}" for stage in stages)
    known = stages[0].memory_source != NOT_GIVEN
    return f"{name}: layers {layers}{f', {format_gib(stages[0].free_bytes)} GiB' if known else ''}"


def _parts(stages: list[StagePlan]) -> tuple[int, ...]:
    """Bytes of each of _PARTS on one card; of one that nobody described no margin and what follows
    it."""
    first = stages[0]
    used = (
        sum(stage.weights_bytes for stage in stages),
        sum(stage.kv_bytes for stage in stages),
        sum(stage.state_bytes for stage in stages),
        sum(stage.workspace_bytes for stage in stages),
    )
    if first.memory_source == NOT_GIVEN:
        return used
    return (*used, first.margin_bytes + first.reserve_bytes, max(0, first.unused_bytes))


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
