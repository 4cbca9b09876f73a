"""Noticing, classifying and stopping lost stages, with real processes and no model."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

import torch

from arcpp.errors import NonFinite
from arcpp.settings import Settings
from arcpp.supervise import Fault, FaultKind
from arcpp_vllm import run_folder
from arcpp_vllm.recovery import progress, records, watch
from arcpp_vllm.recovery.stages import StageLost, Stages


def _stay() -> None:
    time.sleep(600)


class Queue:
    def __init__(self) -> None:
        self.shut = threading.Event()

    def shutdown(self) -> None:
        self.shut.set()


class Executor:
    """As much of MultiprocExecutor as is supervised."""

    def __init__(self, stages: int = 2) -> None:
        context = multiprocessing.get_context("spawn")
        self.workers = [
            SimpleNamespace(
                proc=context.Process(target=_stay, daemon=True), rank=rank, worker_response_mq=None
            )
            for rank in range(stages)
        ]
        for worker in self.workers:
            worker.proc.start()
        self.response_mqs = [Queue()]
        self.rpc_broadcast_mq = None
        self.shutting_down = False
        self.called = threading.Event()
        self.failure_callback = self.called.set
        self._finalizer = SimpleNamespace(detach=lambda: None)

    def shutdown(self) -> None:
        self.shut_down = True


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(run_folder, "ensure", lambda: tmp_path)
    monkeypatch.setattr(run_folder, "known", lambda: tmp_path)
    return tmp_path


@pytest.fixture
def executor(folder: Path) -> Iterator[Executor]:
    made = Executor()
    yield made
    for worker in made.workers:
        worker.proc.kill()


def supervised(executor: Executor, **settings: Any) -> Stages:
    stages = Stages(executor, Settings(**settings))
    stages.forget()
    stages.watch.over(executor.workers)
    return stages


def finished(error: BaseException | None = None) -> Future[Any]:
    future: Future[Any] = Future()
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
    return future


def test_a_killed_stage_is_noticed_and_named(executor: Executor) -> None:
    stages = supervised(executor)
    executor.workers[1].proc.kill()
    assert stages.watch.lost.wait(10)
    assert executor.called.wait(10), "an idle engine is woken"
    assert executor.response_mqs[0].shut.is_set(), "whoever waits for an answer is woken"
    fault = stages.fault(None)
    assert (fault.kind, fault.stage) == (FaultKind.STAGE_DIED, 1)
    assert "SIGKILL" in fault.cause
    with pytest.raises(StageLost):
        stages.check()


def test_a_record_says_more_than_an_exit_code(executor: Executor) -> None:
    records.leave(
        Fault(FaultKind.DEVICE_LOST, "UR_RESULT_ERROR_DEVICE_LOST", "reset", "xpu:0", 0, 0)
    )
    stages = Stages(executor, Settings())
    for worker in executor.workers:
        worker.proc.kill()
        worker.proc.join()
    fault = stages.fault(RuntimeError("cancelled"))
    assert (fault.kind, fault.device) == (FaultKind.DEVICE_LOST, "xpu:0")


@pytest.mark.parametrize("step_timeout", [0.5, 1.0])
def test_a_step_that_does_not_end_is_a_stall(executor: Executor, step_timeout: float) -> None:
    stages = supervised(executor, step_timeout=step_timeout)
    os.kill(executor.workers[1].proc.pid, signal.SIGSTOP)
    stages.watch.begin(10)
    assert stages.watch.lost.wait(20)
    fault = stages.fault(RuntimeError("cancelled"))
    assert (fault.kind, fault.stage) == (FaultKind.STAGE_STALLED, 1)
    assert "its process is stopped" in fault.cause


def test_the_earliest_stage_at_work_is_the_one_that_hangs(executor: Executor) -> None:
    marks = [progress.Mark(rank) for rank in range(3)]
    marks[0].begin()
    marks[0].end()
    marks[1].begin()
    marks[2].begin()
    assert progress.at_work(3) == 1
    stages = supervised(executor, step_timeout=0.5)
    stages.watch.begin(10)
    assert stages.watch.lost.wait(20)
    assert stages.fault(None).stage == 1
    marks[1].end()
    marks[2].end()
    assert progress.at_work(3) is None


def test_a_compilation_is_no_stall_and_what_follows_it_can_be(executor: Executor) -> None:
    """torch's own callbacks, around a real compilation, in this process in place of a stage's."""
    mark = progress.Mark(0)
    mark.note_compilations()
    stages = supervised(executor, step_timeout=0.5)
    mark.begin()
    stages.watch.begin(10)
    seen: list[list[int]] = []

    def slowly(graph: Any, _: Any) -> Any:
        seen.append(progress.compiling(2))
        assert not stages.watch.lost.wait(2.0), "a compilation counted as a stall"
        return graph.forward

    torch.compile(lambda x: x + 1, backend=slowly)(torch.ones(2))
    assert seen == [[0]]
    assert progress.compiling(2) == []
    assert stages.watch.lost.wait(20), "the step never ended"
    assert stages.fault(None).stage == 0


def test_a_stopped_stage_does_not_compile(executor: Executor) -> None:
    progress.Mark(1)._count(2)
    os.kill(executor.workers[1].proc.pid, signal.SIGSTOP)
    stages = supervised(executor, step_timeout=0.5)
    stages.watch.begin(10)
    assert stages.watch.lost.wait(20)


def test_a_compilation_without_end_is_a_stall(
    executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    stages = supervised(executor, step_timeout=0.5)
    monkeypatch.setattr(watch, "_CEILING_S", 1.0)
    progress.Mark(0)._count(2)
    stages.watch.begin(10)
    assert stages.watch.lost.wait(20)


def test_a_torch_that_does_not_tell_is_said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("torch._dynamo.callback.callback_handler")
    warned: list[str] = []
    monkeypatch.setattr(progress.logger, "warning", lambda text, *args: warned.append(text % args))
    progress.Mark(0).note_compilations()
    assert len(warned) == 1
    assert "callback_handler" in warned[0]


def test_steps_that_come_back_are_no_stall(executor: Executor) -> None:
    stages = supervised(executor, step_timeout=2.0)
    for _ in range(4):  # two under way at a time: each has its own turn
        stages.watch.begin(1)
        stages.watch.begin(1)
        time.sleep(0.8)
        stages.watch.done(finished())
        stages.watch.done(finished())
    assert not stages.watch.lost.is_set()
    before = stages.watch.limit
    stages.watch.begin(1)
    assert stages.watch.limit == before + 2.0


def test_what_is_an_error_of_a_step_and_what_is_not(executor: Executor) -> None:
    stages = Stages(executor, Settings())
    assert not stages.is_lost(ValueError("a bug in the scheduler"))
    assert not stages.is_lost(RuntimeError("unrelated"))
    assert stages.is_lost(TimeoutError("RPC call to sample_tokens timed out."))
    assert stages.is_lost(RuntimeError("Worker failed with error 'x', please check"))
    stages.watch.lost.set()
    assert stages.is_lost(RuntimeError("cancelled"))


def test_stopping_leaves_no_process(executor: Executor) -> None:
    stages = supervised(executor)
    processes = [worker.proc for worker in executor.workers]
    os.kill(processes[0].pid, signal.SIGSTOP)
    stages.stop()
    assert not any(process.is_alive() for process in processes)
    assert executor.shut_down
    assert not stages.watch.lost.wait(1), "what was stopped on purpose is no fault"


def test_what_configures_stages_is_repeated_in_order_and_the_last_counts(
    executor: Executor,
) -> None:
    stages = Stages(executor, Settings())
    called: list[tuple[str, Any]] = []

    def rpc(method: str, *, args: tuple[Any, ...] = ()) -> list[Any]:
        stages.remember(method, args)
        called.append((method, args))
        return []

    executor.collective_rpc = rpc  # type: ignore[attr-defined]
    for method, args in (
        ("get_kv_cache_spec", ()),
        ("set_kv_cache_layout", ("LBHNC",)),
        ("determine_available_memory", ()),
        ("set_kv_cache_layout", ("BLHNC",)),
        ("add_lora", (1,)),
        ("add_lora", (2,)),
        ("list_loras", ()),
    ):
        stages.remember(method, args)
    for _ in range(2):
        called.clear()
        stages.replay()
        assert called == [
            ("get_kv_cache_spec", ()),
            ("set_kv_cache_layout", ("BLHNC",)),
            ("add_lora", (1,)),
            ("add_lora", (2,)),
        ]


def _fail_in_a_step(folder: str) -> None:
    run_folder.ensure = lambda: Path(folder)
    with records.leaving(SimpleNamespace(device="xpu:1", rank=1)):
        raise NonFinite("logits", stage=1, step=7)


def test_a_stage_that_fails_leaves_its_reason_and_goes(folder: Path) -> None:
    process = multiprocessing.get_context("spawn").Process(
        target=_fail_in_a_step, args=(str(folder),)
    )
    process.start()
    process.join(120)
    assert process.exitcode == records.EXIT_CODE
    (fault,) = records.collect()
    assert (fault.kind, fault.device, fault.stage) == (FaultKind.NON_FINITE, "xpu:1", 1)
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    records.clear()
    assert records.collect() == []


def test_records_that_are_none_are_passed_over(folder: Path) -> None:
    for number, text in enumerate(("", "{", "[]", '{"kind": "Nonsense"}')):
        (folder / f"fault-{number}.json").write_text(text)
    assert records.collect() == []


def test_an_idle_engine_is_woken_after_a_start_that_failed_too(executor: Executor) -> None:
    """vLLM forgets whom to tell at every start, failed ones included."""
    stages = supervised(executor)
    stages.stop()
    tries = []

    def start() -> None:
        executor.failure_callback = None  # type: ignore[assignment]
        tries.append(1)
        if len(tries) == 1:
            raise RuntimeError("WorkerProc initialization failed")
        executor.workers = Executor(1).workers
        stages.watch.over(executor.workers)

    executor._start_stages = start  # type: ignore[attr-defined]
    with pytest.raises(StageLost):
        stages.start()
    stages.start()
    executor.workers[0].proc.kill()
    assert executor.called.wait(10)


def test_a_process_that_only_seems_dead_is_killed_too(executor: Executor) -> None:
    """As the children of a fork server that was killed: multiprocessing has given them up."""
    stages = supervised(executor)
    process = executor.workers[0].proc
    process._popen.returncode = 255
    stages.stop()
    process._popen.returncode = None
    process.join(5)
    assert process.exitcode == -signal.SIGKILL
