"""The engine's numbers for Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from arcpp_openvino import EngineStats

_GAUGES = {
    "running": "Requests that run.",
    "waiting": "Requests that wait.",
    "kv_blocks": "KV blocks there are.",
    "free_blocks": "KV blocks that are free.",
    "state_slots": "Slots of recurrent state there are.",
    "free_slots": "Slots of recurrent state that are free.",
}
_COUNTERS = {
    "steps": "Steps of the engine.",
    "prompt_tokens": "Prompt tokens computed.",
    "cached_tokens": "Prompt tokens taken from earlier requests.",
    "generated_tokens": "Output tokens.",
    "preemptions": "Requests that gave back their blocks to be computed anew.",
    "faults": "Faults of stages.",
}


class _Stats(Collector):
    def __init__(self, stats: EngineStats) -> None:
        self._stats = stats

    def collect(self) -> list[Metric]:
        """All of it."""
        found: list[Metric] = [
            GaugeMetricFamily(f"arcpp_{name}", says, getattr(self._stats, name))
            for name, says in _GAUGES.items()
        ]
        found += [
            CounterMetricFamily(f"arcpp_{name}", says, getattr(self._stats, name))
            for name, says in _COUNTERS.items()
        ]
        ended = CounterMetricFamily("arcpp_finished", "Requests that are over.", labels=["reason"])
        for reason, count in self._stats.finished.items():
            ended.add_metric([reason], count)
        return [*found, ended]


def stats_page(stats: EngineStats) -> str:
    """The page as text."""
    registry = CollectorRegistry()
    registry.register(_Stats(stats))
    return generate_latest(registry).decode()
