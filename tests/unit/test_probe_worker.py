"""The worker's measurement, and a vLLM whose own memory query cannot be believed."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from tests.support.fake_intel import Card, FakePyzes, fake_sysfs, fake_torch

from arcpp.probe import DECLARED, Reading, Trial
from arcpp.probe.choose import DISPLAY_RESERVE
from arcpp.units import GiB


class Place:
    """torch.device("xpu:0"), as far as it is asked."""

    def __init__(self, kind: Any = "xpu", index: int | None = 0) -> None:
        if isinstance(kind, Place):
            kind, index = kind.type, kind.index
        self.type, self.index = str(kind).partition(":")[0], index

    def __str__(self) -> str:
        return f"{self.type}:{self.index}"


@pytest.fixture
def adapter(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module under test, over a fake vLLM and a torch with one card; .card can be changed."""
    card = Card()
    torch = fake_torch([card])
    torch.device = Place
    torch.accelerator.current_accelerator = lambda: Place("xpu", None)
    torch.accelerator.current_device_index = lambda: 0
    for name in ("vllm", "vllm.logger"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules["vllm.logger"].init_logger = logging.getLogger  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "pyzes", FakePyzes([card]))  # type: ignore[arg-type]
    monkeypatch.delitem(sys.modules, "arcpp_vllm.device_memory", raising=False)
    module = import_module("arcpp_vllm.device_memory")
    yield SimpleNamespace(module=module, card=card, torch=torch)
    sys.modules.pop("arcpp_vllm.device_memory", None)


def test_free_0_of_the_host_does_not_stop_the_start(
    adapter: Any, caplog: pytest.LogCaptureFixture
) -> None:
    memory, verdict = adapter.module.measure(Place(), 12 * GiB, 0)
    assert (memory.total, memory.free) == (12 * GiB, 11 * GiB)
    assert len(verdict.rejected) == 1
    assert "not believed: host: gives 0 bytes free of 12.00 GiB" in caplog.text


def test_the_lowest_possible_figure_is_planned_with(
    adapter: Any, caplog: pytest.LogCaptureFixture
) -> None:
    adapter.card.sysman = (12 * GiB, 7 * GiB)
    memory, _ = adapter.module.measure(Place(), 12 * GiB, 11 * GiB)
    assert (memory.free, memory.source) == (7 * GiB, "Level Zero sysman")
    assert not caplog.records


def test_a_doubtful_figure_is_tried(adapter: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    def trial(device: Any, size: int) -> Trial:
        tried.append(size)
        return Trial(size, 5 * GiB, "XPU out of memory", True)

    monkeypatch.setattr(adapter.module, "trial_allocation", trial)
    adapter.card.torch_free, adapter.card.sysman = 12 * GiB, 0x70010000
    memory, verdict = adapter.module.measure(Place(), 12 * GiB, 12 * GiB)
    assert tried == [12 * GiB - 12 * GiB // 16]
    assert memory.free == 5 * GiB
    assert verdict.doubt is None
    adapter.module.measure(Place(), 12 * GiB, 9 * GiB)
    assert len(tried) == 1, "an undoubted figure needs no trial"


def test_a_failing_trial_does_not_stop_the_start(
    adapter: Any, caplog: pytest.LogCaptureFixture
) -> None:
    adapter.card.torch_free, adapter.card.sysman = 12 * GiB, 0x70010000
    memory, _ = adapter.module.measure(Place(), 12 * GiB, 12 * GiB)  # this torch cannot allocate
    assert memory.free == 12 * GiB
    assert "a trial allocation got nothing" in caplog.text


def test_without_any_total_the_planner_refuses_the_hosts_own_figures(adapter: Any) -> None:
    adapter.card.total = adapter.card.torch_free = 0
    adapter.card.sysman = 0x70000001
    memory, verdict = adapter.module.measure(Place(), 0, 0)
    assert (memory.total, memory.free) == (0, 0)
    assert verdict.memory is None


def test_a_monitor_reserves_memory(
    adapter: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from arcpp.backends import torch_devices
    from arcpp.probe.pci import pci_sightings

    root = fake_sysfs(tmp_path, [adapter.card], monitor=adapter.card.pci)
    monkeypatch.setattr(torch_devices, "pci_sightings", lambda: pci_sightings(root))
    memory, _ = adapter.module.measure(Place(), 12 * GiB, 11 * GiB)
    assert memory.reserve == DISPLAY_RESERVE


def test_vllms_own_query_answers_with_possible_figures(
    adapter: Any, caplog: pytest.LogCaptureFixture
) -> None:
    adapter.module.check_memory_queries()
    checked = adapter.torch.accelerator.get_memory_info
    adapter.module.check_memory_queries()
    assert adapter.torch.accelerator.get_memory_info is checked, "wrapped twice"
    assert checked(0) == (11 * GiB, 12 * GiB)
    assert not caplog.records
    adapter.card.torch_free = 0
    for device in (None, 0, "xpu:0", Place()):
        assert checked(device) == (11 * GiB, 12 * GiB)  # what sysman says
    assert len(caplog.records) == 1
    assert "gives 0 bytes free" in caplog.text


def test_a_query_that_raises_is_answered_by_others(adapter: Any) -> None:
    adapter.card.torch_free = RuntimeError("doesn't support querying")
    adapter.module.check_memory_queries()
    assert adapter.torch.accelerator.get_memory_info(0) == (11 * GiB, 12 * GiB)


def test_a_query_nobody_can_answer_stays_the_hosts(adapter: Any) -> None:
    adapter.card.total = adapter.card.torch_free = 0
    adapter.card.sysman = 0x70000001
    adapter.module.check_memory_queries()
    assert adapter.torch.accelerator.get_memory_info(0) == (0, 0)


def test_the_check_does_not_ask_itself(adapter: Any) -> None:
    asked: list[int] = []

    def query(device: Any) -> tuple[int, int]:
        asked.append(1)
        return 0, 12 * GiB

    adapter.torch.accelerator.get_memory_info = query
    adapter.module.check_memory_queries()
    adapter.torch.accelerator.get_memory_info(0)
    assert len(asked) == 2  # once for vLLM, once as a source


def test_what_the_user_declares_wins(adapter: Any) -> None:
    declared = Reading(DECLARED, 12 * GiB, 8 * GiB)
    memory, _ = adapter.module.measure(Place(), 12 * GiB, 11 * GiB, declared)
    assert (memory.free, memory.source) == (8 * GiB, "declared")


def test_the_drivers_largest_allocation_reaches_the_plan(adapter: Any) -> None:
    from arcpp.backends.torch_devices import allocation_limit

    limit = allocation_limit(Place())
    assert limit is not None
    assert (limit.size, limit.source) == (4 * GiB, "levelzero")


def test_without_a_driver_the_cards_name_says_it(
    adapter: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from arcpp.backends.torch_devices import allocation_limit

    monkeypatch.delitem(sys.modules, "pyzes")
    assert allocation_limit(Place()) is None
    adapter.card.name = "Intel(R) Arc(TM) A770 Graphics"
    limit = allocation_limit(Place())
    assert limit is not None
    assert limit.size == 4 * GiB - 1
