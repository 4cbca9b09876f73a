"""Where the seconds of a recovery go: one log line per phase."""

from __future__ import annotations

import time

from vllm.logger import init_logger

logger = init_logger("vllm.arcpp.recovery")


class Phases:
    """seconds: phase -> seconds, in the order they happened; a phase that is repeated adds up."""

    def __init__(self, begun: float | None = None) -> None:
        """begun: time.monotonic() of the first sign, or now."""
        self.begun = begun or time.monotonic()
        self._last = self.begun
        self.seconds: dict[str, float] = {}

    def done(self, phase: str, *, until: float | None = None) -> None:
        """``phase`` ended now, or at ``until`` (time.monotonic(), which processes share)."""
        now = max(self._last, until or time.monotonic())
        spent, self._last = now - self._last, now
        self.seconds[phase] = self.seconds.get(phase, 0.0) + spent
        logger.info("arcpp: recovery: %s %.2f s", phase, spent)

    @property
    def total(self) -> float:
        """Seconds from the first sign until the last phase ended."""
        return self._last - self.begun
