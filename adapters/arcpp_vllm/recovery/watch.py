"""Noticing: a worker process that ends, and a step that takes longer than it may.

In the engine's process, on a thread of its own: the engine's thread waits for answers.
"""

from __future__ import annotations

import contextlib
import multiprocessing.connection
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arcpp.supervise import Fault, FaultKind, StepDeadline

from . import progress

_FLOOR_S = 30.0  # a derived deadline of a step is never shorter
_CEILING_S = 300.0  # nor longer, nor a compilation: vLLM's VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS
_LOOK_S = 0.25  # between looks at how long a step takes
_PAUSED_S = 2.0  # a look that comes this late: nothing can be said of the stages
_SPARE_S = 60.0  # beyond a step's deadline, which the watching thread keeps


class Watch:
    """Of the workers of one executor and the steps they were given.

    lost: set from the moment a stage is known to be gone or silent until forget(). noticed_at:
    time.monotonic() of that moment. stalled: the fault, when it was silence.
    """

    def __init__(self, executor: Any, step_timeout: float | None) -> None:
        """step_timeout: seconds a step may take; None: derived from those before it."""
        self._executor = executor
        self._limits = StepDeadline(_FLOOR_S, _CEILING_S, fixed=step_timeout)
        self._outstanding: list[_Outstanding] = []
        self._watched: list[Any] | None = None
        self.lost = threading.Event()
        self.forget()

    def forget(self) -> None:
        """Nothing is known to be lost, and no step is under way: before stages start."""
        self._outstanding.clear()
        self.lost.clear()
        self.noticed_at: float | None = None
        self.stalled: Fault | None = None

    def let_go(self) -> None:
        """What happens to the workers from now on is meant to."""
        self._watched = None
        self._outstanding.clear()

    def over(self, workers: list[Any]) -> None:
        """Start the thread that notices when one of ``workers`` ends, or a step takes too long."""
        self._watched = workers
        sentinels = [worker.proc.sentinel for worker in workers]

        def wait() -> None:
            looked = time.monotonic()
            while not multiprocessing.connection.wait(sentinels, _LOOK_S):
                if not self._watches(workers):
                    return
                before, looked = looked, time.monotonic()
                paused = looked - before > _PAUSED_S  # this process, by a debugger say
                if paused or self._compiling(workers, looked - before):
                    self._put_off(looked - before)
                elif self._overdue():
                    self.stalled = self._stall(workers)
                    break
            if self._watches(workers):
                self._notice()

        threading.Thread(target=wait, daemon=True, name="arcpp-stage-watch").start()

    def _watches(self, workers: list[Any]) -> bool:
        """Whether ``workers`` are still the ones that matter, and are not ended on purpose."""
        return self._watched is workers and not self._executor.shutting_down

    def _overdue(self) -> bool:
        """Whether the step whose turn it is takes longer than it may."""
        with contextlib.suppress(IndexError):  # it came back this moment
            step = self._outstanding[0]
            return time.monotonic() - step.turn > step.limit
        return False

    def _compiling(self, workers: list[Any], seconds: float) -> bool:
        """Whether the last ``seconds`` went into a stage's compilation, which may take as long as
        the longest step and is no measure of one."""
        with contextlib.suppress(IndexError):
            step = self._outstanding[0]
            busy = progress.compiling(len(workers))
            if any(not _stopped(workers[rank].proc.pid) for rank in busy):
                step.compiled += seconds
                return step.compiled < _CEILING_S
        return False

    def _put_off(self, seconds: float) -> None:
        for step in list(self._outstanding):
            step.turn += seconds

    def _stall(self, workers: list[Any]) -> Fault:
        stopped = next((w.rank for w in workers if _stopped(w.proc.pid)), None)
        where = stopped if stopped is not None else progress.at_work(len(workers))
        limit = self._outstanding[0].limit if self._outstanding else 0.0
        how = "its process is stopped" if stopped is not None else "it is in the middle of a step"
        return Fault(
            FaultKind.STAGE_STALLED,
            f"no answer to a step within {limit:.1f} s; {how}",
            "a hang of the device or its driver: look at `dmesg`; where steps may take longer, "
            "set step_timeout",
            stage=where,
            rank=where,
        )

    def _notice(self) -> None:
        """A stage is gone: wake whoever waits for an answer, and the engine if it is idle."""
        self.noticed_at = self.noticed_at or time.monotonic()
        self.lost.set()
        for queue in list(getattr(self._executor, "response_mqs", ())):
            queue.shutdown()
        callback = self._executor.failure_callback
        if callback is not None:
            callback()

    def begin(self, tokens: int) -> None:
        """A step of ``tokens`` is sent to the stages, which may have others to end first."""
        self._outstanding.append(_Outstanding(tokens, self._limits.limit(tokens), time.monotonic()))

    @property
    def limit(self) -> float:
        """Seconds within which the answer to the step sent last is due, if the watch fails."""
        return _SPARE_S + sum(step.limit for step in list(self._outstanding))

    def done(self, future: Future[Any]) -> None:
        """The oldest step came back."""
        if not self._outstanding:
            return
        step = self._outstanding.pop(0)
        if future.exception() is None:
            now = time.monotonic()
            self._limits.observe(step.tokens, now - step.turn)
            if self._outstanding:
                self._outstanding[0].turn = now

    def done_unless_sampled(self, future: Future[Any]) -> None:
        """The same for a step whose execution has the result itself, a pooling model's."""
        if future.exception() is None and future.result() is not None:
            self.done(future)


@dataclass
class _Outstanding:
    """A step the stages work on. limit: seconds it may take from its turn on; turn: when that
    was, time.monotonic(), and later by what is not the stages' doing; compiled: seconds."""

    tokens: int
    limit: float
    turn: float
    compiled: float = 0.0


def _stopped(pid: int | None) -> bool:
    """Whether a process is stopped, as by SIGSTOP or a debugger."""
    with contextlib.suppress(OSError, IndexError):
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
        return stat.rpartition(")")[2].split()[0] in ("T", "t")
    return False
