"""arcpp for vLLM: ``vllm serve MODEL --distributed-executor-backend arcpp``.

plugin      registers the name in every vLLM process
compat      which vLLM internals are reached, and the check that they are still there
executor    the executor class vLLM runs: stock multiprocessing plus stages
worker      one stage: the platform's own worker plus plan, link and shims
stage_plan  what a worker knows -> the planner -> the layer partition all stages agree on
transport   puts a link in the place of the pipeline group's tensor sends
shims       small wrappers around vLLM defects, each with the reason and when it can go

Importing this package imports nothing of vLLM.
"""

from __future__ import annotations

from typing import Any

__all__ = ["ArcppExecutor"]


def __getattr__(name: str) -> Any:
    """``arcpp_vllm.ArcppExecutor`` as a dotted executor name, without importing vLLM here."""
    if name == "ArcppExecutor":
        from .executor import ArcppExecutor

        return ArcppExecutor
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
