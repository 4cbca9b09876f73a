"""Whether lost stages are started again, when, and when it is over."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from arcpp.errors import BadInput

from .fault import Fault

_LONGEST_DELAY = 60.0  # seconds
_FRUITLESS = 4  # faults running with no progress, up to which those of a trial are free


@dataclass(frozen=True)
class Decision:
    """What to do after a fault.

    restart: start the stages again; False is for good. delay: seconds to wait before.
    remaining: faults that the budget still covers within the window.
    """

    restart: bool
    delay: float
    remaining: int


class RestartPolicy:
    """``budget`` faults within any ``window`` seconds are survived, the next one is the end.

    backoff: seconds to wait after the second fault running without progress, twice as much
    after the third, and so on, a minute at most; none after the first. Once the answer was no
    it stays no.

    Looking for a request that kills its stage takes about log2(requests) faults and ends by
    itself, so that faults of such a trial cost nothing of the budget, as long as somebody gets
    on in between: of faults running without any progress the fifth counts again, whatever it is.
    """

    def __init__(
        self,
        budget: int,
        window: float,
        backoff: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if budget < 0 or window <= 0 or backoff < 0:
            right = "is not a budget >= 0, a window > 0 and a backoff >= 0"
            raise BadInput("restart policy", (budget, window, backoff), right)
        self._budget, self._window, self._backoff, self._clock = budget, window, backoff, clock
        self._seen: list[tuple[float, Fault]] = []
        self._counted: list[float] = []
        self._running = 0
        self._over = False

    def on_fault(self, fault: Fault, *, trial: bool = False) -> Decision:
        """Decide about one incident: for several stages' faults their root cause, once.

        trial: it happened while suspects were tried (``Suspects.trying`` before ``fault``).
        """
        now = self._clock()
        self._seen.append((now, fault))
        self._running += 1
        if not trial or self._running > _FRUITLESS:
            self._counted.append(now)
        self._counted = [when for when in self._counted if now - when < self._window]
        remaining = self._budget - len(self._counted)
        if remaining < 0 or self._budget == 0:
            self._over = True
        if self._over:
            return Decision(restart=False, delay=0.0, remaining=0)
        return Decision(restart=True, delay=self._delay(), remaining=remaining)

    def recovered(self) -> None:
        """The stages made a token since the last fault."""
        self._running = 0

    @property
    def history(self) -> tuple[tuple[float, Fault], ...]:
        """Every fault with the clock's time, the oldest first."""
        return tuple(self._seen)

    def history_text(self) -> str:
        """The history for people: a line for each fault, with how long ago it was."""
        now = self._clock()
        return "\n".join(f"{now - when:.0f} s ago: {fault}" for when, fault in self._seen)

    def _delay(self) -> float:
        if self._running < 2:
            return 0.0
        return min(self._backoff * 2.0 ** min(self._running - 2, 32), _LONGEST_DELAY)
