"""What a restart asks of a card first."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from arcpp.backends import torch_device_trial
from arcpp.probe import child
from arcpp.supervise import FaultKind, classify

pytest.importorskip("vllm")

from arcpp_vllm.recovery import device_trial
from arcpp_vllm.recovery.stages import StageLost, Stages

GIB = 1 << 30


def answers(monkeypatch: pytest.MonkeyPatch, *outcomes: child.Outcome) -> list[list[str]]:
    """child.run gives ``outcomes`` in turn; what it is called with."""
    asked: list[list[str]] = []

    def run(module: str, arguments: list[str], *, deadline_s: float) -> child.Outcome:
        asked.append(arguments)
        return outcomes[len(asked) - 1]

    monkeypatch.setattr(child, "run", run)
    return asked


def stages(*facts: dict[str, Any]) -> Stages:
    executor = SimpleNamespace(workers=[], shutting_down=False)
    made = Stages(executor, SimpleNamespace(restart_budget=5, step_timeout=None))  # type: ignore[arg-type]
    made.pin(facts)
    return made


def test_memory_that_comes_back_is_waited_for() -> None:
    looks = iter([1, 2, 3, 3])
    pauses: list[float] = []
    assert torch_device_trial.settled(lambda: next(looks), 3, pauses.append) == 3
    assert len(pauses) == 2


def test_memory_that_does_not_come_back_is_waited_for_no_longer_than_that() -> None:
    pauses: list[float] = []
    assert torch_device_trial.settled(lambda: 1, 3, pauses.append) == 1
    assert 10 <= sum(pauses) <= 60


def test_the_child_runs_on_the_processor(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    torch_device_trial.main("cpu", 0)
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == {"free": None}


def test_too_little_memory_names_both_numbers_and_is_no_lost_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = answers(monkeypatch, child.Outcome(child.OK, {"free": 3 * GIB}))
    text = device_trial.trouble("xpu:0", 10 * GIB)
    assert asked == [["xpu:0", str(10 * GIB)]]
    assert text is not None
    assert "xpu:0 has 3.00 GiB free and its stages need 10.00" in text
    assert classify(text=text).kind is FaultKind.OUT_OF_DEVICE_MEMORY


def test_a_device_that_hangs_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, child.Outcome(child.HUNG, {}, "did not answer within 120 s"))
    text = device_trial.trouble("xpu:1", 0)
    assert text is not None
    assert classify(text=text).kind is FaultKind.DEVICE_LOST


def test_a_device_is_asked_once_for_all_its_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    fine = child.Outcome(child.OK, {"free": 99 * GIB})
    asked = answers(monkeypatch, fine, fine)
    stages(
        {"device": "cpu", "partition": "1,1,1,1", "bytes": 7},
        {"device": "xpu:0", "partition": "1,1,1,1", "bytes": 2 * GIB},
        {"device": "xpu:1", "partition": "1,1,1,1", "bytes": GIB},
        {"device": "xpu:0", "partition": "1,1,1,1", "bytes": GIB},
    ).check_devices()
    assert asked == [["xpu:0", str(3 * GIB)], ["xpu:1", str(GIB)]]


def test_the_fault_names_the_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, child.Outcome(child.CRASHED, {}, "UR_RESULT_ERROR_DEVICE_LOST"))
    made = stages(
        {"device": "cpu", "partition": "1,1", "bytes": 7},
        {"device": "xpu:0", "partition": "1,1", "bytes": 0},
    )
    with pytest.raises(StageLost) as lost:
        made.check_devices()
    assert (lost.value.fault.device, lost.value.fault.stage) == ("xpu:0", 1)
