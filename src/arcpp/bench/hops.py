"""Run a request; what was found, with each figure's ratio to raw copies and to gloo."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from arcpp.errors import BadInput, BenchFailed
from arcpp.probe.machine import installed

from .pair import Pair
from .request import GLOO, RAW, HopRequest

_START_S = 180.0  # importing torch and opening devices, twice at a time on a slow disk
_SLOWEST = 100e6  # bytes per second below which a way counts as hung
_HOPS_A_ROUND = 32  # of the largest size: warm up, there and back, many in a row
_MOST_WAYS = 6


@dataclass(frozen=True)
class Figure:
    """One way at one size: seconds of one hop, bytes per second of many in a row.

    to_raw: seconds over those of a raw copy out and one in. of_raw_rate: rate over that of the
    slower raw direction. to_gloo, of_gloo_rate: the same against gloo. None: not measured.
    """

    way: str
    size: int
    one_way_s: float
    bytes_per_s: float
    to_raw: float | None = None
    of_raw_rate: float | None = None
    to_gloo: float | None = None
    of_gloo_rate: float | None = None


@dataclass(frozen=True)
class HopReport:
    """figures: by size, then as measured. links: way -> "kind", "pinning" and "notes" of the link
    behind it. cards: what both devices are. torch: its version."""

    request: HopRequest
    figures: tuple[Figure, ...]
    links: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    cards: tuple[str, ...] = ()
    torch: str = ""


def measure_hops(
    request: HopRequest, progress: Callable[[int, int], None] = lambda _done, _of: None
) -> HopReport:
    """Measure in two processes. progress: told how many of how many rounds are done.

    Takes about a minute with the usual request. Raises BenchFailed; BadInput for a way that is
    not to be had between these devices.
    """
    if not installed("torch"):
        raise BenchFailed("measuring hops needs torch, and this Python has none: use that of vLLM")
    compared: dict[str, Any] = {}
    found: list[Figure] = []
    try:
        with Pair(asdict(request)) as pair:
            for said in pair.lines(_patience(request)):
                if "ways" in said:
                    compared = said
                    _check_ways(request, said["ways"])
                elif "done" in said:
                    progress(said["done"], said["of"])
                else:
                    found.append(Figure(**said))
    except (KeyError, TypeError) as error:
        raise BenchFailed("the measurement answered in another form") from error
    if not compared or not found:
        raise BenchFailed("the measurement ended without an answer")
    return HopReport(
        request,
        with_ratios(found),
        compared["links"],
        tuple(compared["cards"]),
        compared["torch"],
    )


def with_ratios(figures: Sequence[Figure]) -> tuple[Figure, ...]:
    """``figures`` beside those of raw copies and gloo of their size, where they are there."""
    by_key = {(figure.way, figure.size): figure for figure in figures}
    found = []
    for figure in figures:
        raw, gloo = by_key.get((RAW, figure.size)), by_key.get((GLOO, figure.size))
        found.append(
            Figure(
                figure.way, figure.size, figure.one_way_s, figure.bytes_per_s,
                *_ratios(figure, raw), *_ratios(figure, gloo),
            )
        )  # fmt: skip
    return tuple(found)


def _ratios(figure: Figure, other: Figure | None) -> tuple[float | None, float | None]:
    if other is None:
        return None, None
    return figure.one_way_s / other.one_way_s, figure.bytes_per_s / other.bytes_per_s


def _check_ways(request: HopRequest, there: Sequence[str]) -> None:
    for way in request.ways:
        if way not in there:
            right = f"is not to be had between {' and '.join(request.devices)}"
            raise BadInput("--way", way, right)


def _patience(request: HopRequest) -> float:
    """The longest that a round of all ways may take, and the start."""
    measured = _HOPS_A_ROUND * max(request.sizes) / _SLOWEST + 10 * request.seconds
    return _START_S + _MOST_WAYS * measured
