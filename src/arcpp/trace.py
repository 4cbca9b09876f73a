"""Writing down calls of hooks, for people who want to see who was asked what."""

from __future__ import annotations

import reprlib
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import pluggy


def trace_calls(manager: pluggy.PluginManager) -> None:
    """Write a line to standard error after every call of a hook: who was asked, result, time.

    ``arcpp: hook arcpp_plan(profile=..., ...) asked example, arcpp.builtin: Plan(...) in 1.2 ms``
    """
    short = reprlib.Repr()
    short.maxother, short.maxstring, short.maxlevel = 60, 60, 2
    started: dict[int, float] = {}

    def before(_hook: str, _asked: Sequence[pluggy.HookImpl], given: Mapping[str, Any]) -> None:
        started[id(given)] = time.perf_counter()

    def after(
        outcome: pluggy.Result[Any],
        hook: str,
        asked: Sequence[pluggy.HookImpl],
        given: Mapping[str, Any],
    ) -> None:
        took = (time.perf_counter() - started.pop(id(given))) * 1000
        said = repr(outcome.exception) if outcome.exception else short.repr(outcome.get_result())
        values = ", ".join(f"{name}={short.repr(value)}" for name, value in given.items())
        names = ", ".join(implementation.plugin_name for implementation in reversed(asked))
        line = f"arcpp: hook {hook}({values}) asked {names or 'nobody'}: {said} in {took:.3f} ms"
        print(" ".join(line.split()), file=sys.stderr, flush=True)

    manager.add_hookcall_monitoring(before, after)
