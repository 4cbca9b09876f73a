"""Entry point of group ``vllm.general_plugins``: makes vLLM accept the name ``arcpp``.

vLLM calls ``register`` in every process it starts, possibly more than once, and takes no
exception well. So this does nothing but wrap two functions, idempotently, and both wrappers
step aside at once unless arcpp was asked for.

Why wrapping: vLLM's argument check refuses every executor name it does not know when
``--pipeline-parallel-size`` is above 1, dotted names too (EngineArgs._check_feature_supported,
0.20 to 0.33); it accepts a class. Can go when vLLM lets plugins register an executor name.
"""

from __future__ import annotations

import functools
import multiprocessing
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from arcpp.errors import ArcppError

from . import compat, run_folder, scope

NAME = "arcpp"
_DOTTED = ("arcpp_vllm.ArcppExecutor", "arcpp_vllm.executor.ArcppExecutor")
_MARK = "_arcpp_wrapped"
_API_SERVERS = (
    "vllm.entrypoints.launchers.api_server.entry",  # 0.32
    "vllm.entrypoints.openai.api_server",  # before
)


def register() -> None:
    """Wrap what is imported in this process; no effect on any other executor."""
    if _asked_on_command_line(sys.argv) and multiprocessing.parent_process() is None:
        from . import refusal
        from .recovery import front

        refusal.end_with_reason()
        front.exit_nonzero()
    arg_utils = sys.modules.get("vllm.engine.arg_utils")
    if arg_utils is not None:
        _wrap(getattr(arg_utils, "EngineArgs", None), "create_engine_config", _creating_config)
    abstract = sys.modules.get("vllm.v1.executor.abstract")
    if abstract is not None:
        _wrap(getattr(abstract, "Executor", None), "get_class", _getting_class, static=True)


def _asked_on_command_line(arguments: Sequence[str]) -> bool:
    """Whether ``vllm ... --distributed-executor-backend arcpp`` was typed."""
    option = "--distributed-executor-backend"
    pairs = zip(arguments, [*arguments[1:], ""], strict=True)
    return any(
        (name == option and is_ours(value))
        or (name.startswith(f"{option}=") and is_ours(name.partition("=")[2]))
        for name, value in pairs
    )


def is_ours(backend: object) -> bool:
    """Whether ``backend`` (name or class) means this adapter."""
    if isinstance(backend, str):
        return backend == NAME or backend in _DOTTED
    executor = sys.modules.get("arcpp_vllm.executor")
    return executor is not None and backend is executor.ArcppExecutor


def resolve(backend: object) -> Any:
    """The executor class for our names. Raises HostMismatch on a vLLM we do not know."""
    if not is_ours(backend):
        return backend
    compat.require(compat.REGISTRATION + compat.EXECUTION)
    from .executor import ArcppExecutor

    return ArcppExecutor


def _wrap(owner: Any, name: str, wrapper: Any, *, static: bool = False) -> None:
    original = getattr(owner, name, None)
    if original is None or getattr(original, _MARK, False):
        return

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        return wrapper(original, *args, **kwargs)

    setattr(call, _MARK, True)
    setattr(owner, name, staticmethod(call) if static else call)


def _creating_config(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    if not is_ours(getattr(self, "distributed_executor_backend", None)):
        return original(self, *args, **kwargs)
    from . import refusal

    refusal.end_with_reason()
    try:
        self.distributed_executor_backend = resolve(self.distributed_executor_backend)
        scope.check_arguments(self)
        _serve(self, run_folder.ensure())
        config = original(self, *args, **kwargs)
        scope.check_partition_of(config)
        scope.check_state(config)
    except ArcppError as error:
        # ValueError is what vLLM raises for arguments; its callers know how to show it.
        raise ValueError(f"arcpp: {error}") from error
    return config


def _serve(engine_args: Any, folder: Path) -> None:
    """Only in an API server's process: other programs' uvicorn and metrics are their own."""
    if any(name in sys.modules for name in _API_SERVERS):
        from arcpp.settings import from_additional_config

        from . import link_metrics, serving
        from .recovery import front

        settings = from_additional_config(getattr(engine_args, "additional_config", None))
        link_metrics.show_links(folder)
        front.install(folder, settings.recovery_queue)
        serving.bound_shutdown(getattr(engine_args, "shutdown_timeout", 0) or 0)


def _getting_class(original: Any, *args: Any, **kwargs: Any) -> Any:
    config = args[0] if args else kwargs.get("vllm_config")
    parallel = getattr(config, "parallel_config", None)
    backend = getattr(parallel, "distributed_executor_backend", None)
    if isinstance(backend, str) and is_ours(backend):
        return resolve(backend)
    return original(*args, **kwargs)
