"""A plan set against what a vLLM start-up log says."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from .plan import Plan
from .startlog import StartLog
from .units import GiB


@dataclass(frozen=True)
class Row:
    """One figure: predicted and logged. unit: GiB, tokens or blocks."""

    name: str
    rank: int | None
    predicted: float
    logged: float
    unit: str

    def to_json(self) -> dict[str, Any]:
        """For ``--from-log --json``."""
        return {
            "name": self.name,
            "rank": self.rank,
            "predicted": self.predicted,
            "logged": self.logged,
            "unit": self.unit,
        }


def compare(plan: Plan, log: StartLog, from_logged_memory: Plan | None) -> tuple[Row, ...]:
    """Rows of predicted against logged. from_logged_memory: the plan with the KV memory that
    was logged, which shows whether the arithmetic or the memory differs."""
    rows = []
    for rank, stage in enumerate(plan.stages):
        if rank in log.weights_gib:
            weights = round(stage.weights_bytes / GiB, 2)
            rows.append(Row("weights", rank, weights, log.weights_gib[rank], "GiB"))
        if rank in log.available_gib:
            available = round(stage.kv_available_bytes / GiB, 2)
            logged = round(log.available_gib[rank], 2)
            rows.append(Row("available KV", rank, available, logged, "GiB"))
    for name, attribute, unit in (
        ("block size", "block_tokens", "tokens"),
        ("blocks", "num_blocks", "blocks"),
        ("KV cache", "kv_cache_tokens", "tokens"),
    ):
        logged = getattr(log, attribute)
        if logged is None:
            continue
        rows.append(Row(name, None, getattr(plan, attribute), logged, unit))
        if from_logged_memory is not None and attribute != "block_tokens":
            value = getattr(from_logged_memory, attribute)
            rows.append(Row(f"{name} from the logged memory", None, value, logged, unit))
    return tuple(rows)


def _off(predicted: float, logged: float) -> str:
    if not logged:
        return "-"
    ratio = predicted / logged
    return f"{ratio - 1:+.1%}" if abs(ratio) < 10 else f"x{ratio:,.0f}"


def rows_text(rows: Iterable[Row]) -> list[str]:
    """Rows as lines of at most 80 columns."""
    lines = [f"{'predicted against the log':<38}{'predicted':>14}{'logged':>14}{'off by':>9}"]
    for row in rows:
        where = row.name if row.rank is None else f"{row.name}, rank {row.rank}"
        off = _off(row.predicted, row.logged)
        shown = "{:,.2f}" if row.unit == "GiB" else "{:,.0f}"
        predicted, logged = shown.format(row.predicted), shown.format(row.logged)
        lines.append(f"{where + ' (' + row.unit + ')':<38}{predicted:>14}{logged:>14}{off:>9}")
    return lines
