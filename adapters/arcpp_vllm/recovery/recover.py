"""What one engine does when a stage is lost: judge, decide, restart, replay, and say so."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from vllm.logger import init_logger

from arcpp.hooks import Hooks, hooks_for
from arcpp.settings import Settings, from_additional_config
from arcpp.supervise import Fault, FaultAction, RestartPolicy, Suspects
from arcpp_vllm import run_folder

from . import replay, status
from .phases import Phases
from .stages import StageLost, Stages

logger = init_logger("vllm.arcpp.recovery")


class EngineEnds(RuntimeError):
    """The restart budget is spent."""


class Recovery:
    """Of one engine: what to do when a stage is lost. Runs in the engine's own thread."""

    def __init__(self, core: Any, stages: Stages) -> None:
        self.core, self._stages = core, stages
        settings: Settings = from_additional_config(core.vllm_config.additional_config)
        self._hooks: Hooks = hooks_for(settings)
        self._policy = RestartPolicy(settings.restart_budget, settings.restart_window, backoff=1.0)
        self._suspects = Suspects()
        self._under_way: list[Any] = []  # scheduler outputs the stages work on
        self._phases: Phases | None = None  # of a recovery whose requests are computed anew
        self._outputs: dict[int, Any] = {}
        self._trial = False  # whether suspects were being told apart at the last fault
        self._there: dict[str, int] = {}  # requests at faults without a new token: tokens then
        self._status = status.Status()
        self._watch_scheduler()

    # -- steps

    def step(self, original: Callable[..., Any]) -> Any:
        """One step of the engine; when a stage is lost in it, the recovery instead."""
        lost: BaseException | None = None
        if not self._stages.watch.lost.is_set():
            try:
                result = original(self.core)
            except Exception as error:
                if not self.survives(error):
                    raise
                lost = error
            else:
                self._note_progress()
                return result
        # Outside of the handler: what fails from here on must not seem to come of that error.
        return self._recover(lost), False

    def survives(self, error: BaseException) -> bool:
        """Whether ``error``, raised in a step, will be recovered from."""
        return self._stages.is_lost(error)

    def while_idle(self) -> None:
        """The executor reported a loss; a step may have taken care of it already."""
        if self._stages.watch.lost.is_set():
            self._send(self._recover(None))

    def _send(self, outputs: dict[int, Any]) -> None:
        for output in outputs.items():
            self.core.output_queue.put_nowait(output)

    def _watch_scheduler(self) -> None:
        """Know which requests are in the steps under way, and hold suspects back."""
        scheduler = self.core.scheduler
        schedule, update = scheduler.schedule, scheduler.update_from_output

        def scheduling(*args: Any, **kwargs: Any) -> Any:
            with replay.holding_back(scheduler, self._suspects.allowed()):
                output = schedule(*args, **kwargs)
            self._under_way.append(output)
            return output

        def updating(output: Any, *args: Any, **kwargs: Any) -> Any:
            self._under_way = [one for one in self._under_way if one is not output]
            return update(output, *args, **kwargs)

        scheduler.schedule, scheduler.update_from_output = scheduling, updating

    def _note_progress(self) -> None:
        """Who was there when a stage was lost, and got on since or is over."""
        if not self._there:
            return
        requests = self.core.scheduler.requests
        for name, tokens in tuple(self._there.items()):
            request = requests.get(name)
            if request is None or request.is_finished():
                self._suspects.gone(name)
                del self._there[name]
            elif request.num_output_tokens > tokens:
                self._suspects.progress(name, request.num_output_tokens)
                self._policy.recovered()
                del self._there[name]
        if not self._there and self._phases is not None:
            self._phases.done("prefill")
            self._add_seconds({"prefill": self._phases.seconds["prefill"]})
            self._phases = None

    # -- recovery

    def _recover(self, error: BaseException | None) -> dict[int, Any]:
        """Until stages run again. Outputs: of requests failed, for an engine without a queue."""
        phases = Phases(self._stages.watch.noticed_at)
        running = False
        while not running:
            fault = self._stages.fault(error)
            phases.done("detect")
            self._judge(fault)
            self._decide(fault, error)
            try:
                self._restart(phases)
                running = True
            except StageLost as lost:
                error = lost
        self._done(fault, phases)
        outputs, self._outputs = self._outputs, {}
        return outputs

    def _judge(self, fault: Fault) -> None:
        """Fail, at once, the requests that are known by now to kill their stage."""
        requests = self.core.scheduler.requests
        names = [name for output in self._under_way for name in output.num_scheduled_tokens]
        self._under_way.clear()
        in_flight = {
            name: requests[name].num_output_tokens
            for name in names
            if name in requests and not requests[name].is_finished()
        }
        self._trial = self._suspects.trying
        reasons = dict.fromkeys(
            self._suspects.fault(in_flight),
            f"arcpp: this request lost its stage twice running alone, the last time by: {fault}",
        )
        self._there |= in_flight
        if not reasons:
            return
        self._status.failed |= reasons
        self._publish()  # before the API server hears of the failure
        for name, why in reasons.items():
            logger.error("arcpp: request %s is failed: %s", name, why)
        failed = replay.fail(self.core, reasons)
        if hasattr(self.core, "output_queue"):
            self._send(failed)
        else:
            self._outputs |= failed

    def _decide(self, fault: Fault, error: BaseException | None) -> None:
        """Return to restart; else end the engine, with the history.

        Faults while suspects are told apart cost nothing: that comes to an end by itself.
        """
        decision = self._policy.on_fault(fault, trial=self._trial)
        action = self._hooks.fault(fault, len(self._policy.history))
        stage = "" if fault.stage is None else str(fault.stage)
        counted = f"{fault.kind.value}|{stage}"
        self._status.faults[counted] = self._status.faults.get(counted, 0) + 1
        if self._stopping():
            raise SystemExit(0)  # the server is told to stop: nobody waits for these stages
        if action is FaultAction.GIVE_UP or not decision.restart:
            self._end(error)
        self._status.recovering, self._status.since = str(fault), time.time()
        self._publish()
        logger.warning(
            "arcpp: %s; stages restart (%d more within the window)", fault, decision.remaining
        )
        time.sleep(decision.delay)

    def _stopping(self) -> bool:
        return not getattr(self.core, "is_running", lambda: True)()

    def _end(self, error: BaseException | None) -> NoReturn:
        """The budget is spent: vLLM's own death, with what happened and what to do."""
        history = self._policy.history_text()
        self._status.ended, self._status.recovering = history, None
        self._publish()
        logger.error("arcpp: the engine ends after too many faults:\n%s", history)
        raise EngineEnds(history) from error

    def _restart(self, phases: Phases) -> None:
        """Raises StageLost when a stage is lost again on the way."""
        self._stages.stop()
        phases.done("stop")
        self._stages.check_devices()
        phases.done("check")
        self._stages.start()
        for phase, until in self._stages.start_times():
            phases.done(phase, until=until)
        self._stages.replay()
        phases.done("warm")
        replay.requeue(self.core)
        known = replay.known_requests(self.core)
        self._stages.call("restore_requests", (known,))
        self._status.replayed += len(known)
        phases.done("requests")

    def _done(self, fault: Fault, phases: Phases) -> None:
        status_ = self._status
        status_.recovering, status_.recoveries = None, status_.recoveries + 1
        status_.expected = phases.total
        self._phases = phases if self._there else None
        self._add_seconds(phases.seconds)
        self._hooks.recovered(fault, phases.seconds)
        known = sum(1 for r in self.core.scheduler.requests.values() if r.num_output_tokens)
        logger.warning(
            "arcpp: recovered from %s in %.2f s; %d streams go on",
            *(fault.kind.value, phases.total, known),
        )

    def _add_seconds(self, seconds: Mapping[str, float]) -> None:
        for phase, spent in seconds.items():
            self._status.seconds[phase] = self._status.seconds.get(phase, 0.0) + spent
        self._publish()

    def _publish(self) -> None:
        status.write(run_folder.ensure(), self._status)
