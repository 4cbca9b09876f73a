"""One hop between two processes on the processor: arcpp's ring, gloo, and raw copies.

Written by `arcpp bench hop --device cpu`. One way: half of a round trip, every byte at rest on the
other side. Rate: many hops in a row. Raw copies: two copies in host memory and nothing else (the
time is of both, the rate of the slower). The ring hands the slot itself to the receiver, gloo
copies through a socket. Medians of the rounds, all ways in turns.
"""

from __future__ import annotations

from arcpp.bench import HopReport, HopRequest, measure_hops
from arcpp.bench.report import hop_rows
from arcpp.bench.request import WAYS

HEADING = (
    "| payload | way | one way us | GB/s | times raw copies | of raw rate | times sooner than "
    "gloo | times the rate of gloo |",
    "| --- " * 8 + "|",
)
_ROUNDS = 9
_WAYS = ("raw", "ring", "verified", "gloo")


def table() -> list[str]:
    """The table as markdown lines."""
    ways = tuple(WAYS[word] for word in _WAYS)
    return rows(measure_hops(HopRequest(("cpu", "cpu"), ways=ways, rounds=_ROUNDS)))


def rows(report: HopReport) -> list[str]:
    """``report`` as markdown lines."""
    return [
        *HEADING,
        *(f"| {' | '.join(cells)} |" for cells in hop_rows(report.figures)),
    ]
