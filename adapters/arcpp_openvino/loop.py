"""The engine's thread: fill the chain with steps, choose tokens, tell listeners, survive faults.

Steps are filled in before the text of the last ones is made, so that devices compute meanwhile.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from arcpp.errors import ArcppError, NonFinite
from arcpp.supervise import StepDeadline

from .batch import SequenceStep, StepBatch, step_batch
from .errors import StageFailed
from .recovery import Recovery
from .request import EngineClosed, FinishReason, Piece, RequestFailed, Running
from .sampler import Choice, Sampler, pick
from .scheduler import Part, Scheduler
from .text import OutputText, Tokenizer

# As settings.step_timeout says. A first step may compile kernels.
_FLOOR_S, _CEILING_S = 30.0, 300.0

logger = logging.getLogger("arcpp.openvino")


class Steps(Protocol):
    """What the loop needs of a chain; see chain.Chain."""

    def submit(self, batch: StepBatch, microbatch: int = 0) -> None: ...
    def collect(self, microbatch: int = 0, timeout: float | None = None) -> NDArray[np.float32]: ...


@dataclass
class Counters:
    """What happened so far. Written by the loop's thread."""

    steps: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    cached_tokens: int = 0
    faults: int = 0
    finished: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class _News:
    """Something a listener is still to hear."""

    running: Running
    choice: Choice | None
    reason: FinishReason | None
    error: ArcppError | None = None


class Loop:
    """One thread over ``chain``; ``start`` it once. Other threads add, cancel and close."""

    def __init__(
        self,
        chain: Steps,
        scheduler: Scheduler,
        tokenizer: Tokenizer,
        recovery: Recovery,
        *,
        hybrid: bool,
        vocab_size: int,
        step_timeout: float | None = None,
    ) -> None:
        """step_timeout: seconds a step may take before its stage counts as stalled; None: learnt
        from the steps so far."""
        self.chain, self.scheduler, self.counters = chain, scheduler, Counters()
        self._tokenizer, self._recovery, self._hybrid = tokenizer, recovery, hybrid
        self._vocab_size = vocab_size
        self._new: deque[Running] = deque()
        self._cancelled: set[str] = set()
        self._changed = threading.Condition()
        self._flights: OrderedDict[int, list[Part]] = OrderedDict()
        self._free = list(range(scheduler.limits.microbatches))
        self._texts: dict[Running, OutputText] = {}
        self._samplers: dict[Running, Sampler] = {}
        self._news: list[_News] = []
        self._limits = StepDeadline(_FLOOR_S, _CEILING_S, fixed=step_timeout)
        self._began: dict[int, float] = {}  # microbatch -> when its step was submitted
        self._closing: str | None = None  # why no more requests are taken
        self._give_up_at: float | None = None
        self._thread = threading.Thread(target=self._run, name="arcpp-openvino", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def add(self, running: Running) -> None:
        """Take a request. Raises EngineClosed."""
        with self._changed:
            if self._closing is not None:
                raise EngineClosed(self._closing)
            self._new.append(running)
            self._changed.notify()

    def cancel(self, request_id: str) -> None:
        """End a request within a step; nothing happens where it is over."""
        with self._changed:
            self._cancelled.add(request_id)
            self._changed.notify()

    @property
    def waiting(self) -> int:
        """Requests that are not running yet."""
        return len(self._new) + len(self.scheduler.waiting)

    @property
    def closing(self) -> bool:
        """Whether no more requests are taken."""
        return self._closing is not None

    @property
    def ended(self) -> bool:
        """Whether the thread is over."""
        return not self._thread.is_alive()

    def close(self, drain: float | None, why: str = "it is closed") -> None:
        """Take no more requests, let those there are finish for ``drain`` seconds (None: as long
        as it takes), end the rest as cancelled, and wait for the thread."""
        with self._changed:
            self._closing = self._closing or why
            self._give_up_at = None if drain is None else time.monotonic() + drain
            self._changed.notify()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join()

    # -- the thread

    def _run(self) -> None:
        try:
            while self._take():
                try:
                    self._fill()
                    self._tell()
                    self._collect()
                except (StageFailed, NonFinite) as error:
                    self._recover(error)
            self._tell()
        except ArcppError as error:
            self._end(error)
        except Exception as error:  # a defect of ours: nobody may wait for ever
            logger.exception("the engine ends")
            self._end(EngineClosed(f"{type(error).__name__}: {error}"))

    def _take(self) -> bool:
        """Wait for something to do; take new requests and ends of others. False: it is over."""
        while True:
            with self._changed:
                while not self._has_work() and self._closing is None:
                    self._changed.wait()
                new, self._new = list(self._new), deque()
                cancelled, self._cancelled = self._cancelled, set()
            for running in new:
                self._begin(running)
            self._end_some(cancelled)
            if self._flights or any(True for _ in self.scheduler.everybody()):
                return True
            if self._news:
                self._tell()
            elif self._closing is not None and not self._new:
                return False

    def _has_work(self) -> bool:
        busy = self._new or self._cancelled or self._flights or self._news
        return bool(busy or self.scheduler.running or self.scheduler.waiting)

    def _begin(self, running: Running) -> None:
        self._texts[running] = self._text(running)
        self._samplers[running] = Sampler(
            running.sampling, self._vocab_size, running.tokens, self._tokenizer.end_tokens
        )
        self.scheduler.add(running)

    def _text(self, running: Running) -> OutputText:
        asked = running.sampling
        return OutputText(self._tokenizer, asked.stop, include_stop=asked.include_stop)

    def _end_some(self, cancelled: set[str]) -> None:
        """Requests that were cancelled, are late, or outstay the drain."""
        now = time.monotonic()
        giving_up = self._closing is not None and (self._give_up_at or now + 1) <= now
        for running in self.scheduler.everybody():
            if running.request_id in cancelled or giving_up:
                reason = FinishReason.CANCELLED
            elif running.deadline is not None and now >= running.deadline:
                reason = FinishReason.DEADLINE
            else:
                continue
            if running.in_flight:
                running.ending = reason
            else:
                self._finish(running, None, reason)

    def _fill(self) -> None:
        while self._free:
            parts = self.scheduler.step(self._recovery.allowed())
            if not parts:
                return
            microbatch = self._free.pop()
            self._flights[microbatch] = parts
            self._began[microbatch] = time.monotonic()
            batch = step_batch(
                [_sequence(part) for part in parts], self.scheduler.blocks.size, hybrid=self._hybrid
            )
            self.chain.submit(batch, microbatch)

    def _collect(self) -> None:
        if not self._flights:
            return
        microbatch, parts = next(iter(self._flights.items()))
        count = sum(part.count for part in parts)
        behind = len(self._flights)  # steps in flight share the stages
        logits = self.chain.collect(microbatch, self._limits.limit(count) * behind)
        self._limits.observe(count, time.monotonic() - self._began.pop(microbatch))
        last = [part for part in parts if part.last]
        choices = pick(logits, [self._samplers[part.running] for part in last]) if last else []
        del self._flights[microbatch]
        self._free.append(microbatch)
        self.counters.steps += 1
        chosen = dict(zip((part.running for part in last), choices, strict=True))
        for part in parts:
            self._count(part)
            self.scheduler.done(part)
            if part.running.ending is not None:
                self._finish(part.running, None, part.running.ending)
            elif part.last:
                self._append(part.running, chosen[part.running])

    def _count(self, part: Part) -> None:
        running = part.running
        if part.start < running.prompt_tokens and not running.output:
            self.counters.prompt_tokens += part.count
            if part.start == running.cached_tokens:
                self.counters.cached_tokens += running.cached_tokens

    def _append(self, running: Running, choice: Choice) -> None:
        sampling, token = running.sampling, choice.token
        running.tokens.append(token)
        self.counters.generated_tokens += 1
        self._recovery.progress(running)
        if self._ends(running, token):
            self._finish(running, choice, FinishReason.STOP)
        elif len(running.output) >= sampling.max_tokens:
            self._finish(running, choice, FinishReason.LENGTH)
        else:
            self._news.append(_News(running, choice, None))

    def _ends(self, running: Running, token: int) -> bool:
        sampling = running.sampling
        model_ends = not sampling.ignore_eos and token in self._tokenizer.end_tokens
        return model_ends or token in sampling.stop_token_ids

    def _finish(
        self,
        running: Running,
        choice: Choice | None,
        reason: FinishReason,
        error: ArcppError | None = None,
    ) -> None:
        self.scheduler.finish(running)
        self._recovery.gone(running)
        self._samplers.pop(running, None)
        self._news.append(_News(running, choice, reason, error))

    def _tell(self) -> None:
        news, self._news = self._news, []
        for each in news:
            text, choice, reason = self._texts[each.running], each.choice, each.reason
            # The token that says stop is no text; those after a stop text are nobody's.
            silent = choice is None or text.stopped or reason is FinishReason.STOP
            new = "" if choice is None or silent else text.add([choice.token])
            if text.stopped and reason is not FinishReason.ERROR:
                if reason is None:
                    self._stop(each.running)
                else:
                    reason = FinishReason.STOP
            if reason is not None:
                new += text.finish()
                del self._texts[each.running]
                count = self.counters.finished
                count[reason.value] = count.get(reason.value, 0) + 1
            tokens = () if choice is None else (choice.token,)
            logprobs = () if choice is None or choice.logprob is None else (choice.logprob,)
            each.running.listener(Piece(new, tokens, reason, each.error, logprobs))

    def _stop(self, running: Running) -> None:
        """Its text has come to a stop; a step may be under way for it."""
        if running.in_flight:
            running.ending = FinishReason.STOP
        else:
            self._finish(running, None, FinishReason.STOP)

    # -- faults

    def _recover(self, error: StageFailed | NonFinite) -> None:
        self.counters.faults += 1
        in_flight = [part.running for parts in self._flights.values() for part in parts]
        failed = self._recovery.judge(error, in_flight)
        states = self._recovery.restart()
        self._flights.clear()
        self._began.clear()
        self._free = list(range(self.scheduler.limits.microbatches))
        self.scheduler.lost(states)
        for running in failed:
            why = RequestFailed(running.request_id, f"its steps fail the stage: {error}")
            self._finish(running, None, FinishReason.ERROR, why)

    def _end(self, error: ArcppError) -> None:
        """Nobody is served any more."""
        with self._changed:
            self._closing = str(error)
            new, self._new = list(self._new), deque()
        for running in new:
            self._texts[running] = self._text(running)
        everybody = [*self.scheduler.everybody(), *new]
        self._news += [_News(one, None, FinishReason.ERROR, error) for one in everybody]
        self._tell()


def _sequence(part: Part) -> SequenceStep:
    running, window = part.running, part.window
    return SequenceStep(
        token_ids=running.tokens[part.start : part.start + part.count],
        past=part.start,
        blocks=running.blocks,
        read=0 if window is None else window.read,
        writes=() if window is None else window.writes,
        wants_logits=part.last,
    )
