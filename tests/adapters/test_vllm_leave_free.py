"""Settings margin and reserve lower what vLLM may take, and never raise it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from arcpp.errors import HostMismatch
from arcpp.settings import Settings

pytest.importorskip("vllm")

from arcpp_vllm import stage_plan

PLAN: Any = SimpleNamespace(
    stages=(
        SimpleNamespace(device="xpu:0", free_bytes=1000, margin_bytes=100, reserve_bytes=50),
        SimpleNamespace(device="xpu:1", free_bytes=2000, margin_bytes=100, reserve_bytes=0),
    )
)


@pytest.fixture(autouse=True)
def _on_xpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_plan, "current_platform", SimpleNamespace(is_cpu=lambda: False))


@pytest.mark.parametrize(
    ("settings", "rank", "requested", "left"),
    [
        (Settings(), 0, 920, 920),
        (Settings(margin=100), 0, 920, 850),
        (Settings(margin=100), 0, 800, 800),
        (Settings(reserve={"xpu:0": 50}), 0, 920, 850),
        (Settings(reserve={"xpu:0": 50}), 1, 1990, 1990),
        (Settings(margin=100), 1, 1990, 1900),
    ],
)
def test_what_vllm_may_take(settings: Settings, rank: int, requested: int, left: int) -> None:
    worker = SimpleNamespace(rank=rank, requested_memory=requested)
    stage_plan._leave_free(worker, settings, PLAN)
    assert worker.requested_memory == left


def test_a_vllm_without_that_figure_is_refused_only_when_it_is_needed() -> None:
    worker = SimpleNamespace(rank=0)
    stage_plan._leave_free(worker, Settings(), PLAN)
    with pytest.raises(HostMismatch, match="requested_memory is gone"):
        stage_plan._leave_free(worker, Settings(margin=1), PLAN)
