"""Figures of hops for people, in a table of 80 columns, and for programs, as one object."""

from __future__ import annotations

import io
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from arcpp._version import __version__
from arcpp.units import GiB, KiB, MiB

from .hops import Figure, HopReport

WIDTH = 80
_LEGEND = (
    "times raw: one way, over a raw copy out and one in. of raw: rate, over the slower raw "
    "direction. x gloo: how many times sooner one hop is, and how many times the rate."
)


def hop_json(report: HopReport) -> dict[str, Any]:
    """The object of ``arcpp bench hop --json``: seconds, bytes and bytes per second."""
    return {
        "arcpp": __version__,
        "machine": {"processor": processor(), "cores": len(os.sched_getaffinity(0))},
        "versions": {"python": platform.python_version(), "torch": report.torch},
        "devices": [
            {"name": name, "card": card}
            for name, card in zip(report.request.devices, report.cards, strict=True)
        ],
        "rounds": report.request.rounds,
        "links": {way: dict(link) for way, link in report.links.items()},
        "figures": [_figure_json(figure) for figure in report.figures],
    }


def _figure_json(figure: Figure) -> dict[str, Any]:
    return {
        "way": figure.way,
        "size_bytes": figure.size,
        "one_way_s": figure.one_way_s,
        "bytes_per_s": figure.bytes_per_s,
        "times_raw_copies": figure.to_raw,
        "share_of_raw_rate": figure.of_raw_rate,
        "times_sooner_than_gloo": _inverse(figure.to_gloo),
        "times_rate_of_gloo": figure.of_gloo_rate,
    }


def hop_text(report: HopReport) -> str:
    """The same as lines of at most 80 columns."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    buffer = io.StringIO()
    console = Console(
        file=buffer, width=WIDTH, color_system=None, force_terminal=False, highlight=False
    )
    for line in _heading(report):
        console.print(Text(line))
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("payload", justify="right")
    table.add_column("way")
    for name in ("one way us", "GB/s", "times\nraw", "of\nraw", "x gloo\nsooner", "x gloo\nrate"):
        table.add_column(name, justify="right")
    for cells in hop_rows(report.figures):
        table.add_row(*cells)
    console.print(table)
    console.print(Text(_LEGEND))
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines())


def hop_rows(figures: Sequence[Figure]) -> list[tuple[str, ...]]:
    """Cells of the table, a payload named once."""
    rows: list[tuple[str, ...]] = []
    before = None
    for figure in figures:
        rows.append(
            (
                "" if figure.size == before else shown_size(figure.size),
                figure.way,
                _number(figure.one_way_s * 1e6),
                _number(figure.bytes_per_s / 1e9),
                _number(figure.to_raw),
                "-" if figure.of_raw_rate is None else f"{figure.of_raw_rate:.0%}",
                _number(_inverse(figure.to_gloo)),
                _number(figure.of_gloo_rate),
            )
        )
        before = figure.size
    return rows


def shown_size(size: int) -> str:
    """A payload in the largest binary unit that leaves it whole: "20 KiB"."""
    for unit, name in ((GiB, "GiB"), (MiB, "MiB"), (KiB, "KiB")):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} B"


def processor() -> str:
    """The processor's model, as the kernel names it."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    for line in text.splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _heading(report: HopReport) -> list[str]:
    (first, second), cards = report.request.devices, report.cards
    lines = [f"{first} ({cards[0]}) <-> {second} ({cards[1]}), torch {report.torch}"]
    pages = {way: link["pinning"] for way, link in report.links.items() if "pinning" in link}
    alike = len(set(pages.values())) == 1
    said = [f"{'ring' if alike else way}: {pinning} pages" for way, pinning in pages.items()]
    said.append(f"medians of {report.request.rounds} rounds")
    lines.append("; ".join(dict.fromkeys(said)))
    for way, link in report.links.items():
        lines += [f"{way}: {note}" for note in link.get("notes", ())]
    return lines


def _inverse(ratio: float | None) -> float | None:
    return None if ratio is None else 1 / ratio


def _number(value: float | None) -> str:
    """Three digits that count, without an exponent."""
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
