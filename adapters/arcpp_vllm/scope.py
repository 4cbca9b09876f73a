"""What arcpp does not do in vLLM, refused at start by name instead of failing later.

Read twice: from EngineArgs, before anything starts, and from VllmConfig in the executor, for
configurations that never were arguments.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from arcpp.errors import BadInput, BadModel, HostMismatch
from arcpp.partition import check_partition, parse_partition

from . import compat

PARTITION_VARIABLE = "VLLM_PP_LAYER_PARTITION"
V2_RUNNER_VARIABLE = "VLLM_USE_V2_MODEL_RUNNER"

# Option -> (the value that is fine, why any other is not).
_SIZES = {
    "tensor_parallel_size": (1, "arcpp splits by layers, use --pipeline-parallel-size"),
    "data_parallel_size": (1, "start one server per replica"),
    "nnodes": (1, "all stages share one machine"),
    "prefill_context_parallel_size": (1, "arcpp splits by layers only"),
    "decode_context_parallel_size": (1, "arcpp splits by layers only"),
}
_REQUIRED = ("tensor_parallel_size", "pipeline_parallel_size", "async_scheduling")


def check_arguments(engine_args: Any) -> None:
    """Refuse (BadInput) what EngineArgs ask for and arcpp cannot do; settle what it needs.

    Async scheduling and the V2 runner are turned off unless asked for, in which case they are
    refused: with several stages, text was reported corrupted by the first, and the second sends
    sampled tokens over a device collective (xccl on XPU). The runner's choice must be the same
    in every process of the engine, and vLLM carries it in the environment only.
    """
    for name in _REQUIRED:
        if not hasattr(engine_args, name):
            missing = (f"EngineArgs.{name} is gone",)
            raise HostMismatch("vLLM", compat.vllm_version(), missing, compat.SUPPORTED)
    _check_settings(engine_args)
    _check_model(getattr(engine_args, "model", None))
    _check_sizes(engine_args)
    _check_features(engine_args, engine_args.pipeline_parallel_size)
    if engine_args.async_scheduling:
        raise BadInput("--async-scheduling", True, "is not supported across stages: leave it off")
    engine_args.async_scheduling = False
    if os.environ.setdefault(V2_RUNNER_VARIABLE, "0").lower() not in ("0", "false"):
        raise BadInput(
            V2_RUNNER_VARIABLE,
            os.environ[V2_RUNNER_VARIABLE],
            "is not supported: unset it or set it to 0",
        )


def _check_model(model: str | None) -> None:
    """Refuse a folder that holds no model. A name that is no path is left to the hub."""
    if not model:
        return
    path = Path(model)
    if not path.exists():
        if path.is_absolute() or model.startswith("."):
            raise BadModel("model", model, "does not exist: give a folder or a hub name")
        return
    config = path / "config.json"
    if path.is_dir() and not config.exists():
        raise BadModel("model", model, "has no config.json")
    if path.is_dir() and not os.access(config, os.R_OK):
        raise BadModel("model", str(config), "may not be read by this user")


def _check_settings(engine_args: Any) -> None:
    """Read settings and load plugins here first: what is wrong is said before a process starts."""
    from arcpp.hooks import hooks_for  # not wanted in processes that never asked for arcpp
    from arcpp.settings import from_additional_config

    hooks_for(from_additional_config(getattr(engine_args, "additional_config", None)))


def check_partition_of(vllm_config: Any) -> None:
    """Refuse (BadInput) what can be known of the stages before any process starts for them."""
    stages = vllm_config.parallel_config.pipeline_parallel_size
    layers = vllm_config.model_config.get_total_num_hidden_layers()
    if stages > layers:
        right = f"is more stages than the model has layers ({layers})"
        raise BadInput("--pipeline-parallel-size", stages, right)
    given = os.environ.get(PARTITION_VARIABLE)
    if given is not None:
        partition = parse_partition(given, PARTITION_VARIABLE)
        check_partition(partition, layers, stages, PARTITION_VARIABLE)


def check_config(vllm_config: Any) -> None:
    """Refuse (BadInput) a finished configuration that arcpp cannot run."""
    parallel = vllm_config.parallel_config
    _check_sizes(parallel)
    _check_features(vllm_config, parallel.pipeline_parallel_size)
    check_state(vllm_config)
    if vllm_config.use_v2_model_runner:
        raise BadInput("V2 model runner", "on", f"is not supported: set {V2_RUNNER_VARIABLE}=0")


def check_state(vllm_config: Any) -> None:
    """Refuse (BadInput) cached prefixes with drafts, reported to corrupt recurrent state."""
    draft = getattr(vllm_config, "speculative_config", None)
    hybrid = getattr(vllm_config.model_config, "is_hybrid", False)
    if draft is None or not hybrid:
        return
    if vllm_config.cache_config.enable_prefix_caching:
        method = draft.get("method") if isinstance(draft, dict) else getattr(draft, "method", None)
        raise BadInput(
            _option("speculative_config"),
            method,
            "with prefix caching corrupts recurrent state in vLLM: add --no-enable-prefix-caching",
        )


def _check_sizes(holder: Any) -> None:
    for name, (fine, why) in _SIZES.items():
        value = getattr(holder, name, fine)
        if value != fine:
            raise BadInput(_option(name), value, f"is not supported: {why}")


def _check_features(holder: Any, stages: int) -> None:
    connector = getattr(holder, "kv_transfer_config", None)
    if connector is not None:
        raise BadInput(
            _option("kv_transfer_config"),
            getattr(connector, "kv_connector", None),
            "is not supported: arcpp moves boundaries between stages itself",
        )
    draft = getattr(holder, "speculative_config", None)
    if draft is not None and stages > 1:
        method = draft.get("method") if isinstance(draft, dict) else getattr(draft, "method", None)
        raise BadInput(
            _option("speculative_config"),
            method,
            "is not supported with more than one stage: leave it out",
        )


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")
