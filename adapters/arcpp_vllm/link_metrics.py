"""Metrics of every link on vLLM's own /metrics.

vLLM serves prometheus_client's own registry. With ``--api-server-count``, or a user's
PROMETHEUS_MULTIPROC_DIR, it serves what a MultiProcessCollector finds there, in a registry that is
new at each scrape (prometheus_fastapi_instrumentator, 8.1) and in which no collector can be
registered beforehand: MultiProcessCollector brings ours along. Either way the collector reads at
scrape time what the workers' ends counted (`link_counters`); all servers show the same figures.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from . import link_counters
from .recovery.metrics import RecoveryCollector

_MARK = "_arcpp_wrapped"
_LABELS = ("link", "end", "kind", "model_name")
_COUNTERS = {
    "hops": ("arcpp_link_hops", "Boundaries that crossed the link."),
    "bytes": ("arcpp_link_bytes", "Bytes that crossed the link."),
    "wait_seconds": (
        "arcpp_link_wait_seconds",
        "Seconds this end waited for the other end, or for room.",
    ),
    "verify_failures": (
        "arcpp_link_verify_failures",
        "Boundaries whose content was found to be wrong.",
    ),
}


class LinkCollector:
    """A collector of prometheus_client over the ends that publish in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def describe(self) -> Iterator[Any]:
        """The families without figures: their names, for the registry."""
        yield from _families([])

    def collect(self) -> Iterator[Any]:
        """The families as they are now."""
        yield from _families(list(link_counters.read_all(self._folder)))


def _families(ends: list[tuple[Any, Any]]) -> Iterator[Any]:
    from prometheus_client.core import CounterMetricFamily, InfoMetricFamily

    for field, (name, says) in _COUNTERS.items():
        counter = CounterMetricFamily(name, says, labels=_LABELS)
        for end, counters in ends:
            labels = [getattr(end, label) for label in _LABELS]
            counter.add_metric(labels, getattr(counters, field))
        yield counter
    info = InfoMetricFamily("arcpp_link", "How the link works.", labels=_LABELS)
    for end, _ in ends:
        labels = [getattr(end, label) for label in _LABELS]
        how = {"pinning": end.pinning, "verification": end.verification}
        info.add_metric(labels, how)
    yield info


def show_links(folder: Path) -> None:
    """In an API server: the ends that publish in ``folder`` are on its /metrics. Idempotent."""
    from prometheus_client import REGISTRY, multiprocess

    _add(REGISTRY, folder)
    original = multiprocess.MultiProcessCollector.__init__
    if getattr(original, _MARK, False):
        return

    @functools.wraps(original)
    def with_links(self: Any, registry: Any, *args: Any, **kwargs: Any) -> None:
        original(self, registry, *args, **kwargs)
        if registry is not None:
            _add(registry, folder)

    setattr(with_links, _MARK, True)
    multiprocess.MultiProcessCollector.__init__ = with_links


def _add(registry: Any, folder: Path) -> None:
    if not getattr(registry, _MARK, False):
        registry.register(LinkCollector(folder))
        registry.register(RecoveryCollector(folder))
        setattr(registry, _MARK, True)
