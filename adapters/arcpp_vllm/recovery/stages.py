"""The executor's worker processes: what became of them, stopping all, starting all again.

Nothing of MultiprocExecutor is copied: its own ``_init_executor`` starts the stages each time,
and its ``shutdown`` closes the queues. All stages restart together, because a process group does
not outlive a dead member. What differs from vLLM: its monitor ends the engine when a worker dies
(start_worker_monitor, 0.20 to 0.33), its RPCs of the start wait for ever, and those of a step
wait 300 s.
"""

from __future__ import annotations

import contextlib
import gc
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from vllm import envs

from arcpp.errors import ArcppError
from arcpp.settings import Settings
from arcpp.supervise import Deadline, Fault, classify, root_cause
from arcpp_vllm import refusal, run_folder
from arcpp_vllm.scope import PARTITION_VARIABLE

from . import device_trial, records
from .processes import end_after, killed, rendezvous_in, segments, unlink
from .watch import Watch

STEP = ("execute_model", "sample_tokens")
_RECORDS_S = 0.5  # for the other stages of an incident to say what they saw
_KILL_S = 20.0  # for killed processes to be gone
_START_FLOOR_S = 120.0  # a restart may take this long, or a multiple of the first start
_START_FACTOR = 3.0
_RPC_S = 3600.0  # calls of the first start, which may read weights for long


class StageLost(ArcppError):
    """A stage is gone or does not answer; ``fault`` says which and why."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        super().__init__(str(fault))


class Stages:
    """The workers of one executor, in the engine's process.

    watch: what notices their loss. survives: whether anything is done about it but ending.
    """

    def __init__(self, executor: Any, settings: Settings) -> None:
        self._executor = executor
        self.survives = settings.restart_budget > 0
        self.watch = Watch(executor, settings.step_timeout)
        self._calls: list[tuple[str, tuple[Any, ...]]] = []
        self._first_start_s: float | None = None
        self._files: set[Path] = set()
        self._facts: tuple[dict[str, Any], ...] = ()

    # -- noticing

    def check(self) -> None:
        """Raise StageLost if a stage is known to be gone."""
        if self.watch.lost.is_set():
            raise StageLost(self.fault(None))

    def timeout_of(self, timeout: float | None) -> float:
        """Seconds a call that is no step may take; vLLM waits for those of a start for ever."""
        if timeout is not None:
            return timeout
        return _RPC_S if self._first_start_s is None else self._start_limit()

    def is_lost(self, error: BaseException | None) -> bool:
        """Whether ``error``, raised in a step, comes of a stage that is gone or silent."""
        if isinstance(error, StageLost) or self.watch.lost.is_set():
            return True
        if isinstance(error, TimeoutError):
            return True
        worded = isinstance(error, RuntimeError) and (
            str(error) == "cancelled" or str(error).startswith("Worker failed with error")
        )
        return worded and (self.watch.lost.wait(_RECORDS_S) or "Worker failed" in str(error))

    def fault(self, error: BaseException | None) -> Fault:
        """What happened, from records, exit codes and ``error``; waits a little for the former."""
        if isinstance(error, StageLost):
            return error.fault
        reason = refusal.left()
        if reason is not None:
            refusal.clear()
            return classify(text=reason)
        if self.watch.stalled is not None:
            return self.watch.stalled
        workers = list(self._executor.workers or ())
        deadline = Deadline(_RECORDS_S if self.watch.lost.is_set() else 0.0)
        seen = _seen(workers)
        while not deadline.expired and all(one.consequence for one in seen):
            time.sleep(0.02)
            seen = _seen(workers)
        if seen:
            return root_cause(seen)
        return classify(error)

    # -- stopping

    def stop(self) -> None:
        """Kill every stage and take away what it held. Raises StageLost for one that does not
        die: a process stuck in the kernel survives SIGKILL."""
        executor = self._executor
        self.watch.let_go()
        workers = list(executor.workers or ())
        names = segments(executor)
        stuck = killed([worker.proc for worker in workers], _KILL_S)
        if stuck:
            raise StageLost(classify(text=f"process {stuck[0]} survives SIGKILL"))
        executor.shutdown()  # nothing is left to wait for: closes pipes and queues
        executor._finalizer.detach()
        executor.workers = []
        gc.collect()  # queues in tracebacks of the failed step keep memory mapped
        unlink(names)
        for path in rendezvous_in(run_folder.known()) - self._files:
            with contextlib.suppress(OSError):
                path.unlink()

    def check_devices(self) -> None:
        """Raise StageLost unless every accelerator opens, allocates, computes, and has the memory
        that its stages need, in a child with a deadline: a wedged card ends in advice, not in a
        loop."""
        for device in dict.fromkeys(fact["device"] for fact in self._facts):
            stages = [n for n, fact in enumerate(self._facts) if fact["device"] == device]
            if device.partition(":")[0] != "cpu":
                needed = sum(self._facts[stage]["bytes"] for stage in stages)
                trouble = device_trial.trouble(device, needed)
                if trouble is not None:
                    where = {"device": device, "stage": stages[0], "rank": stages[0]}
                    raise StageLost(classify(text=trouble, **where))

    # -- starting

    @contextlib.contextmanager
    def starting_first(self) -> Iterator[None]:
        """Around the first start: a later one is allowed a multiple of what it takes."""
        begun = time.monotonic()
        with end_after(_RPC_S):
            yield
        self._first_start_s = time.monotonic() - begun

    def pin(self, facts: Sequence[dict[str, Any]]) -> None:
        """What the first start decided holds for every later one: caches depend on it.

        facts: ArcppWorker.stage_facts() of every stage.
        """
        self._facts = tuple(facts)

    def forget(self) -> None:
        """Before any start: no fault is known, and files made from now on are the stages'."""
        records.clear()
        self.watch.forget()
        self._files = rendezvous_in(run_folder.known())

    def start(self) -> None:
        """Start all stages as at first. Raises StageLost."""
        executor = self._executor
        callback = executor.failure_callback
        self.forget()
        executor.shutting_down = False
        envs.disable_envs_cache()  # filled after the first start, when variables were put back
        try:
            with end_after(self._start_limit()), self._same_partition():
                executor._start_stages()
        except Exception as error:
            executor.workers = []
            raise StageLost(self.fault(error)) from error
        finally:
            envs.enable_envs_cache()
            executor.failure_callback = callback  # vLLM forgets it at every start

    @contextlib.contextmanager
    def _same_partition(self) -> Iterator[None]:
        """Within: started processes take the layers their predecessors had."""
        before = os.environ.get(PARTITION_VARIABLE)
        if self._facts and self._facts[0]["partition"] is not None:
            os.environ[PARTITION_VARIABLE] = self._facts[0]["partition"]
        try:
            yield
        finally:
            os.environ.pop(PARTITION_VARIABLE, None)
            if before is not None:
                os.environ[PARTITION_VARIABLE] = before

    def remember(self, method: Any, args: tuple[Any, ...]) -> None:
        """Keep a call that configures the stages, to be repeated after a restart."""
        if not isinstance(method, str) or method not in _CONFIGURING:
            return
        if method in _ONCE:
            self._calls = [(name, given) for name, given in self._calls if name != method]
        self._calls.append((method, args))

    def replay(self) -> None:
        """Repeat them in their order. Raises StageLost."""
        calls, self._calls = self._calls, []  # the executor remembers them again
        try:
            for method, args in calls:
                self.call(method, args)
        except StageLost:
            self._calls = calls
            raise

    def call(self, method: str, args: tuple[Any, ...] = ()) -> list[Any]:
        """What every stage answers. Raises StageLost."""
        try:
            answers: list[Any] = self._executor.collective_rpc(method, args=args)
        except Exception as error:
            raise error if isinstance(error, StageLost) else StageLost(self.fault(error)) from error
        return answers

    def start_times(self) -> list[tuple[str, float]]:
        """When (time.monotonic()) the slowest stage had started, and had loaded its weights."""
        times = self.call("start_times")
        return [(name, max(one[name] for one in times)) for name in ("start", "load")]

    def _start_limit(self) -> float:
        return max(_START_FLOOR_S, _START_FACTOR * (self._first_start_s or 0.0))


#: Calls of a start, as Executor and EngineCore make them (0.30 to 0.33), and of a running server
#: that change what a worker holds. Those in _ONCE replace an earlier one.
_ONCE = (
    "get_kv_cache_spec", "set_kv_cache_layout", "update_max_model_len", "limit_sequences",
    "initialize_from_config", "compile_or_warm_up_model",
)  # fmt: skip
_CONFIGURING = (*_ONCE, "add_lora", "remove_lora", "pin_lora")


def _seen(workers: list[Any]) -> list[Fault]:
    """What stages recorded, and how those ended that recorded nothing."""
    said = {fault.rank: fault for fault in records.collect()}
    for worker in workers:
        code = worker.proc.exitcode
        if code is not None and worker.rank not in said:
            said[worker.rank] = classify(exit_code=code, stage=worker.rank, rank=worker.rank)
    return list(said.values())
