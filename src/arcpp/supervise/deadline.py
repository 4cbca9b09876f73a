"""How long something may take."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from arcpp.errors import BadInput

Clock = Callable[[], float]


class Deadline:
    """A moment after which waiting is over. seconds: from now; None: never."""

    def __init__(self, seconds: float | None, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._end = None if seconds is None else clock() + seconds

    def remaining(self) -> float | None:
        """Seconds left, never below 0; None without an end."""
        return None if self._end is None else max(0.0, self._end - self._clock())

    @property
    def expired(self) -> bool:
        """Whether it has passed."""
        return self._end is not None and self._clock() >= self._end


_RECENT = 64  # step times that are remembered of each size
_ENOUGH = 3  # of one size, before they are believed
_MANY = 8  # of one size, before a single slow one among them counts as an accident


class StepDeadline:
    """How long one step may take, learnt from the steps before it.

    Steps are sorted by how many tokens they compute, in powers of two. A step may take
    ``factor`` times the slowest recent one of its size, one accident (a compilation) aside,
    and never less than ``floor`` nor more than ``ceiling`` seconds. A size that was not seen yet
    takes what a larger one took, or what a smaller one took times as many tokens; before
    anything was seen it is ``ceiling``. fixed: what a person has set; nothing is learnt then.
    """

    def __init__(
        self, floor: float, ceiling: float, factor: float = 10.0, fixed: float | None = None
    ) -> None:
        if not 0 < floor <= ceiling or factor < 1:
            wanted = "is not 0 < floor <= ceiling and factor >= 1"
            raise BadInput("step deadline", (floor, ceiling, factor), wanted)
        self._floor, self._ceiling, self._factor, self._fixed = floor, ceiling, factor, fixed
        self._times: dict[int, deque[float]] = {}

    def observe(self, tokens: int, seconds: float) -> None:
        """A step over ``tokens`` tokens ended after ``seconds``."""
        if seconds >= 0:  # a clock that jumped tells nothing
            self._times.setdefault(_size(tokens), deque(maxlen=_RECENT)).append(seconds)

    def limit(self, tokens: int) -> float:
        """Seconds that a step over ``tokens`` tokens may take."""
        if self._fixed is not None:
            return self._fixed
        expected = self._expected(_size(tokens))
        if expected is None:
            return self._ceiling
        return min(max(expected * self._factor, self._floor), self._ceiling)

    def _expected(self, size: int) -> float | None:
        """Seconds of a slow step of ``size``; None when nothing is known."""
        known = {one: _slow(times) for one, times in self._times.items() if len(times) >= _ENOUGH}
        smaller = [one for one in known if one <= size]
        larger = [one for one in known if one >= size]
        at_least = max((known[one] for one in smaller), default=0.0)
        if larger:
            return max(at_least, known[min(larger)])
        if smaller:
            return max(at_least, known[max(smaller)] * 2.0 ** (size - max(smaller)))
        return None


def _size(tokens: int) -> int:
    """0 for none, k for 2**(k-1) tokens and more."""
    return max(0, tokens).bit_length()


def _slow(times: deque[float]) -> float:
    slowest = sorted(times)
    return slowest[-1] if len(times) < _MANY else slowest[-2]
