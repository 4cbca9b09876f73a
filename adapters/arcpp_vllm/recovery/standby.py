"""A process with everything imported, waiting to be forked into stages.

On two cores two thirds of a restart are imports (docs/benchmarks.md). The standard library has
what it takes: a fork server, started with the first stages, which imports what a stage needs,
touches no device, and from which every stage is forked, at the first start and after every loss.

On an accelerator only torch and transformers are imported beforehand: vLLM's worker modules ask
the driver which platform this is, and a driver that was asked does not survive a fork
(torch.xpu: "Cannot re-initialize XPU in forked subprocess").
"""

from __future__ import annotations

import contextlib
import multiprocessing.context
import os
from collections.abc import Callable, Iterator
from typing import Any

from vllm.platforms import current_platform
from vllm.v1.executor import multiproc_executor

from arcpp_vllm import orphans

_ANYWHERE = ("torch", "transformers", "numpy", "zmq", "msgspec")
_ON_CPU = (
    "vllm.entrypoints.cli.main",  # the main module of a server's processes
    "vllm.v1.executor.multiproc_executor",
    "arcpp_vllm.executor",
    "arcpp_vllm.worker",
)


@contextlib.contextmanager
def forking(vllm_config: Any) -> Iterator[None]:
    """Within: vLLM's worker processes are forked from the fork server, which is started if need
    be. It ends with the process that started it and the last stage."""
    context = _Context()
    context.set_forkserver_preload([*_ANYWHERE, *_for_platform(vllm_config)])
    original = multiproc_executor.get_mp_context
    multiproc_executor.get_mp_context = lambda: context
    try:
        yield
    finally:
        multiproc_executor.get_mp_context = original


def _for_platform(vllm_config: Any) -> tuple[str, ...]:
    return (*_ON_CPU, *_model_modules(vllm_config)) if current_platform.is_cpu() else ()


def _model_modules(vllm_config: Any) -> list[str]:
    """Modules of the model's classes, where vLLM would look for them."""
    from vllm.model_executor.models.registry import ModelRegistry

    known = [ModelRegistry.models.get(name) for name in vllm_config.model_config.architectures]
    return [entry.module_name for entry in known if hasattr(entry, "module_name")]


class _Process(multiprocessing.context.ForkServerProcess):
    """Takes the variables its starter has now; a fork server's children have the server's."""

    def __init__(self, *, target: Callable[..., Any], kwargs: dict[str, Any], **more: Any) -> None:
        given = {"target": target, "environ": dict(os.environ), "arguments": kwargs}
        super().__init__(target=_run, kwargs=given, **more)


class _Context(multiprocessing.context.ForkServerContext):
    """multiprocessing's, with processes of our kind."""

    Process = _Process  # type: ignore[assignment]


def _run(target: Callable[..., Any], environ: dict[str, str], arguments: dict[str, Any]) -> None:
    for name in os.environ.keys() - environ.keys():
        del os.environ[name]
    for name, value in environ.items():
        if os.environ.get(name) != value:  # setproctitle finds its room by the untouched ones
            os.environ[name] = value
    os.environ[orphans.FORKED] = "1"
    import torch

    threads = environ.get("OMP_NUM_THREADS", "")
    if threads.isdigit():
        torch.set_num_threads(int(threads))
    target(**arguments)
