"""What the engine does when a stage fails: judge, decide, compile it anew, and replay."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from arcpp.errors import ArcppError, NonFinite
from arcpp.hooks import Hooks
from arcpp.state import SlotPool
from arcpp.supervise import Fault, FaultAction, RestartPolicy, Suspects, classify

from .errors import StageFailed
from .request import Running

_PATIENCE_S = 10.0  # for steps still in flight at a restart; one that hangs is left to itself

logger = logging.getLogger("arcpp.openvino")


class EngineEnds(ArcppError):
    """No restart is left. fault: the last one. history: all of them, a line each."""

    def __init__(self, fault: Fault, history: str) -> None:
        self.fault, self.history = fault, history
        super().__init__(f"no restart is left after {fault}")


class Restartable(Protocol):
    """What recovery needs of a chain."""

    def restart(self, stage: int | None = None, timeout: float | None = None) -> None: ...


class Recovery:
    """Of one engine. Runs in the engine's thread. pool: makes the slots over the new tables, None
    for models without recurrent state."""

    def __init__(
        self,
        chain: Restartable,
        pool: Callable[[], SlotPool | None],
        policy: RestartPolicy,
        hooks: Hooks,
    ) -> None:
        self._chain, self._pool, self._policy, self._hooks = chain, pool, policy, hooks
        self._suspects = Suspects()
        self._there: dict[str, int] = {}  # requests at the last fault: output tokens then
        self._fault: Fault | None = None
        self._attempt = 0
        self._delay = 0.0

    def allowed(self) -> frozenset[str] | None:
        """Requests that may run; None for all. See Suspects."""
        return self._suspects.allowed()

    def progress(self, running: Running) -> None:
        """``running`` has a new token."""
        if self._there.pop(running.request_id, None) is not None:
            self._suspects.progress(running.request_id, len(running.output))
            self._policy.recovered()
            self._attempt = 0

    def gone(self, running: Running) -> None:
        """``running`` is over."""
        self._suspects.gone(running.request_id)
        self._there.pop(running.request_id, None)

    def judge(self, error: StageFailed | NonFinite, in_flight: Sequence[Running]) -> list[Running]:
        """Who is failed for it, at most one. Raises EngineEnds."""
        fault = error.fault if isinstance(error, StageFailed) else classify(error)
        trial = self._suspects.trying
        there = {running.request_id: len(running.output) for running in in_flight}
        failed = self._suspects.fault(there)
        self._there.update(there)
        self._decide(fault, trial=trial)
        return [running for running in in_flight if running.request_id in failed]

    def _decide(self, fault: Fault, *, trial: bool) -> None:
        self._fault, self._attempt = fault, self._attempt + 1
        decision = self._policy.on_fault(fault, trial=trial)
        action = self._hooks.fault(fault, self._attempt)
        if not decision.restart or action is FaultAction.GIVE_UP:
            raise EngineEnds(fault, self._policy.history_text())
        self._delay = decision.delay
        logger.warning("%s; restarting, %d faults left", fault, decision.remaining)

    def restart(self) -> SlotPool | None:
        """Compile what failed again, with fresh tables, as often as the policy lets; the new pool.
        Raises EngineEnds."""
        assert self._fault is not None
        began = time.monotonic()
        while True:
            time.sleep(self._delay)
            try:
                self._chain.restart(self._fault.stage, _PATIENCE_S)
                pool = self._pool()
            except ArcppError as error:
                fault = error.fault if isinstance(error, StageFailed) else classify(error)
                self._decide(fault, trial=False)
            else:
                seconds = time.monotonic() - began
                logger.warning("stages run again after %.1f s", seconds)
                self._hooks.recovered(self._fault, {"start": seconds})
                return pool
