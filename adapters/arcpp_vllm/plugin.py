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
import os
import sys
from typing import Any

from arcpp.errors import ArcppError, BadInput, HostMismatch
from arcpp.partition import check_partition, parse_partition

from . import compat, run_folder

NAME = "arcpp"
PARTITION_VARIABLE = "VLLM_PP_LAYER_PARTITION"
_DOTTED = ("arcpp_vllm.ArcppExecutor", "arcpp_vllm.executor.ArcppExecutor")
_MARK = "_arcpp_wrapped"


def register() -> None:
    """Wrap what is imported in this process; no effect on any other executor."""
    arg_utils = sys.modules.get("vllm.engine.arg_utils")
    if arg_utils is not None:
        _wrap(getattr(arg_utils, "EngineArgs", None), "create_engine_config", _creating_config)
    abstract = sys.modules.get("vllm.v1.executor.abstract")
    if abstract is not None:
        _wrap(getattr(abstract, "Executor", None), "get_class", _getting_class, static=True)


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
        _check_arguments(self)
        run_folder.ensure()
        config = original(self, *args, **kwargs)
        _check_partition(config)
    except ArcppError as error:
        # ValueError is what vLLM raises for arguments; its callers know how to show it.
        raise ValueError(f"arcpp: {error}") from error
    return config


def _getting_class(original: Any, *args: Any, **kwargs: Any) -> Any:
    config = args[0] if args else kwargs.get("vllm_config")
    parallel = getattr(config, "parallel_config", None)
    backend = getattr(parallel, "distributed_executor_backend", None)
    if isinstance(backend, str) and is_ours(backend):
        return resolve(backend)
    return original(*args, **kwargs)


def _check_arguments(engine_args: Any) -> None:
    """Refuse what arcpp cannot do, and choose the runner and scheduler it was built for."""
    for name in ("tensor_parallel_size", "async_scheduling"):
        if not hasattr(engine_args, name):
            missing = (f"EngineArgs.{name} is gone",)
            raise HostMismatch("vLLM", compat.vllm_version(), missing, compat.SUPPORTED)
    if engine_args.tensor_parallel_size != 1:
        raise BadInput(
            "--tensor-parallel-size",
            engine_args.tensor_parallel_size,
            "is not supported: arcpp splits by layers, use --pipeline-parallel-size",
        )
    if engine_args.async_scheduling:
        raise BadInput("--async-scheduling", True, "is not supported across stages: leave it off")
    engine_args.async_scheduling = False
    # The V2 runner sends sampled tokens over a device collective (xccl on XPU). Every process of
    # this engine must see the same choice, and vLLM carries it in the environment only.
    if os.environ.setdefault("VLLM_USE_V2_MODEL_RUNNER", "0") not in ("0", "false", "False"):
        raise BadInput(
            "VLLM_USE_V2_MODEL_RUNNER",
            os.environ["VLLM_USE_V2_MODEL_RUNNER"],
            "is not supported: unset it or set it to 0",
        )


def _check_partition(vllm_config: Any) -> None:
    """What can be known of the stages before any process is started for them."""
    stages = vllm_config.parallel_config.pipeline_parallel_size
    layers = vllm_config.model_config.get_total_num_hidden_layers()
    if stages > layers:
        right = f"is more stages than the model has layers ({layers})"
        raise BadInput("--pipeline-parallel-size", stages, right)
    given = os.environ.get(PARTITION_VARIABLE)
    if given is not None:
        check_partition(
            parse_partition(given, PARTITION_VARIABLE), layers, stages, PARTITION_VARIABLE
        )
