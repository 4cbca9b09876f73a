"""The engine's step, with a way on when a stage is lost during it.

EngineCore.step and step_with_batch_queue are wrapped (0.30 to 0.33). An exception that comes of
a lost stage does not end the engine: stages restart, requests go back into the queue, and the
step returns as one in which nothing came out. Any other exception passes through.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

from .recover import Recovery
from .stages import Stages

_MARK = "_arcpp_recovering"
_ATTRIBUTE = "_arcpp_recovery"
_STEPS = ("step", "step_with_batch_queue")


def install() -> None:
    """Wrap the engine's classes in this process; steps aside for other executors. Idempotent."""
    from vllm.v1.engine.core import EngineCore, EngineCoreProc

    for name in _STEPS:
        _wrap(EngineCore, name, _stepping)
    _wrap(EngineCore, "log_error_detail", _logging_detail)
    _wrap(EngineCoreProc, "_handle_client_request", _handling)


def _wrap(owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
    original = getattr(owner, name)
    if getattr(original, _MARK, False):
        return

    @functools.wraps(original)
    def call(self: Any, *args: Any) -> Any:
        recovery = of(self)
        return original(self, *args) if recovery is None else wrapper(recovery, original, *args)

    setattr(call, _MARK, True)
    setattr(owner, name, call)


def _stepping(recovery: Recovery, original: Callable[..., Any]) -> Any:
    return recovery.step(original)


@contextlib.contextmanager
def _logging_detail(
    recovery: Recovery, original: Callable[..., Any], output: Any
) -> Iterator[None]:
    """vLLM dumps its configuration and the step at every error: not for one that is survived."""
    try:
        yield
    except Exception as error:
        if recovery.survives(error):
            raise
        with original(recovery.core, output):
            raise


def _handling(recovery: Recovery, original: Callable[..., Any], kind: Any, request: Any) -> None:
    from vllm.v1.engine import EngineCoreRequestType

    if kind == EngineCoreRequestType.EXECUTOR_FAILED:
        recovery.while_idle()
    else:
        original(recovery.core, kind, request)


def of(core: Any) -> Recovery | None:
    """The recovery of an engine whose stages are supervised; None for any other engine."""
    stages = getattr(core.model_executor, "stages", None)
    if not isinstance(stages, Stages) or not stages.survives:
        return None
    known = getattr(core, _ATTRIBUTE, None)
    if known is None:
        known = Recovery(core, stages)
        setattr(core, _ATTRIBUTE, known)
    return known
