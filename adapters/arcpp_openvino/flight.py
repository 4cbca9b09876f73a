"""One microbatch on its way through the stages."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from .errors import StageFailed
from .stage import CompiledStage


class Flight:
    """The infer requests of one microbatch, each of which starts the next where it ends.

    busy: whether a step is in flight. Callbacks run in OpenVINO's threads; everything else in the
    chain's.
    """

    def __init__(self, stages: Sequence[CompiledStage], microbatch: int) -> None:
        self._stages = tuple(stages)
        self._requests: list[Any] = [stage.requests[microbatch] for stage in stages]
        self._unstarted: tuple[int, BaseException] | None = None
        self.busy = False
        for index, request in enumerate(self._requests[:-1]):
            request.set_callback(partial(self._pass_on, index + 1), None)

    def start(self) -> None:
        """Start the first stage. Raises StageFailed."""
        self._unstarted = None
        try:
            self._requests[0].start_async()
        except RuntimeError as error:
            raise self._stages[0].failed(error, "step") from error
        self.busy = True

    def wait(self, timeout: float | None = None) -> None:
        """Wait for the last stage, ``timeout`` seconds at most.

        Raises StageFailed for the first that failed; for one that does not answer in time too, and
        the step then stays in flight.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        for stage, request in zip(self._stages, self._requests, strict=True):
            if self._unstarted is not None and self._unstarted[0] == stage.index:
                self.busy = False
                raise stage.failed(self._unstarted[1], "step") from self._unstarted[1]
            try:
                if deadline is None:
                    request.wait()
                elif not request.wait_for(max(0, round(1000 * (deadline - time.monotonic())))):
                    raise stage.failed(TimeoutError(f"no answer within {timeout:g} s"), "step")
            except RuntimeError as error:
                self.busy = False
                raise stage.failed(error, "step") from error
        self.busy = False

    def abandon(self, timeout: float | None = None) -> bool:
        """Wait for whatever runs; no result, no error. False when it still runs after that."""
        if self.busy:
            with suppress(StageFailed):
                self.wait(timeout)
        return not self.busy

    def _pass_on(self, index: int, _: object) -> None:
        """Start stage ``index``: the one before it has ended well."""
        try:
            self._requests[index].start_async()
        except BaseException as error:  # told by wait(): raised here it would be the other stage's
            self._unstarted = index, error
