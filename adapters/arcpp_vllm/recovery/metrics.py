"""Faults and recoveries on vLLM's own /metrics, from what the engine wrote down (`status`)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from . import status


class RecoveryCollector:
    """A collector of prometheus_client over the status in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def describe(self) -> Iterator[Any]:
        """The families without figures: their names, for the registry."""
        yield from _families(status.Status())

    def collect(self) -> Iterator[Any]:
        """The families as they are now."""
        yield from _families(status.read(self._folder))


def _families(now: status.Status) -> Iterator[Any]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    faults = CounterMetricFamily("arcpp_faults", "Faults noticed.", labels=("kind", "stage"))
    for key, count in now.faults.items():
        faults.add_metric(key.split("|"), count)
    yield faults
    yield CounterMetricFamily("arcpp_recoveries", "Recoveries completed.", value=now.recoveries)
    yield CounterMetricFamily(
        "arcpp_replayed_requests", "Requests that went on after a recovery.", value=now.replayed
    )
    yield CounterMetricFamily(
        "arcpp_poisonous_requests",
        "Requests failed because they lost their stage again and again.",
        value=len(now.failed),
    )
    yield GaugeMetricFamily(
        "arcpp_recovering", "1 while stages restart.", value=float(now.recovering is not None)
    )
    seconds = CounterMetricFamily(
        "arcpp_recovery_seconds", "Seconds spent in recoveries.", labels=("phase",)
    )
    for phase, spent in now.seconds.items():
        seconds.add_metric([phase], spent)
    yield seconds
