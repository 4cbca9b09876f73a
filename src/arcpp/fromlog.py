"""Read a vLLM start-up log and set what it says against a plan.

Lines are found by their text, whatever stands before it; ranks by ``PP<n>`` or ``rank=<n>`` in
the line's prefix, else by order of appearance. The file is read line by line and is bounded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .errors import BadInput
from .plan import Plan
from .request import PlanRequest
from .units import GiB

_LIMIT = 256 * 1024**2
_LINE = 4000
_RANK = re.compile(r"(?:_PP|\bPP|rank=|Rank )(\d{1,3})\b|_PP(\d{1,3})")
_GIB = r"(-?\d{1,7}(?:\.\d{1,6})?)"
_WEIGHTS = re.compile(rf"Model loading took {_GIB} ?GiB|Loading model weights took {_GIB} ?GiB")
_AVAILABLE = re.compile(
    rf"Available KV cache memory: {_GIB} ?GiB|(?:Auto|Explicitly) set \({_GIB}/"
)
_TOKENS = re.compile(r"KV cache size: (\d{1,3}(?:,\d{3}){0,5}|\d{1,15}) tokens")
_LENGTH = re.compile(r"[Cc]oncurrency for (\d{1,3}(?:,\d{3}){0,5}|\d{1,15}) tokens per request")
_BLOCKS = re.compile(r"# (?:GPU|CPU|XPU) blocks: (\d{1,12})|num_gpu_blocks is: (\d{1,12})")
_BLOCK = re.compile(r"Setting attention block size to (\d{1,9}) tokens")


@dataclass
class StartLog:
    """What a log says. weights_gib, available_gib: by rank. arcpp: whether arcpp's worker wrote
    it. Others: None when not logged."""

    weights_gib: dict[int, float] = field(default_factory=dict)
    available_gib: dict[int, float] = field(default_factory=dict)
    kv_cache_tokens: int | None = None
    max_model_len: int | None = None
    num_blocks: int | None = None
    block_tokens: int | None = None
    arcpp: bool = False

    def as_run(self, request: PlanRequest) -> PlanRequest:
        """``request`` as this server ran it: its length where none is asked for, and on a stock
        vLLM the duplicates that arcpp's worker would have dropped."""
        if request.max_model_len is None and self.max_model_len is not None:
            request = replace(request, max_model_len=self.max_model_len)
        return request if self.arcpp else replace(request, dropped_roles=frozenset())


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


def read_log(path: Path) -> StartLog:
    """The figures in the log at ``path``. Raises BadInput when it holds none, or cannot be read."""
    try:
        if path.stat().st_size > _LIMIT:
            raise BadInput("--from-log", str(path), f"is too large (limit {_LIMIT} bytes)")
        with path.open("r", encoding="utf-8", errors="replace") as file:
            found = parse_log(iter(lambda: file.readline(_LINE), ""))
    except OSError as error:
        raise BadInput("--from-log", str(path), f"cannot be read: {error.strerror}") from None
    if replace(found, arcpp=False) == StartLog():
        raise BadInput("--from-log", str(path), "holds no start-up figures of vLLM")
    return found


def parse_log(lines: Iterable[str]) -> StartLog:
    """The figures in ``lines``; the last start wins where a log holds several."""
    log = StartLog()
    for line in lines:
        for pattern, store in ((_WEIGHTS, log.weights_gib), (_AVAILABLE, log.available_gib)):
            match = pattern.search(line)
            if match is not None:
                value = float(next(group for group in match.groups() if group is not None))
                store[_rank(line[: match.start()], store)] = value
        log.kv_cache_tokens = _number(_TOKENS, line, log.kv_cache_tokens)
        log.max_model_len = _number(_LENGTH, line, log.max_model_len)
        log.num_blocks = _number(_BLOCKS, line, log.num_blocks)
        log.block_tokens = _number(_BLOCK, line, log.block_tokens)
        log.arcpp = log.arcpp or "arcpp: the plan for" in line
    return log


def _rank(prefix: str, seen: dict[int, float]) -> int:
    match = _RANK.search(prefix)
    if match is not None:
        return int(next(group for group in match.groups() if group is not None))
    return max(seen, default=-1) + 1


def _number(pattern: re.Pattern[str], line: str, before: int | None) -> int | None:
    match = pattern.search(line)
    if match is None:
        return before
    return int(next(group for group in match.groups() if group is not None).replace(",", ""))


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
            rows.append(Row("available KV", rank, available, log.available_gib[rank], "GiB"))
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
