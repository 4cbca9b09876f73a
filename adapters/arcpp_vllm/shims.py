"""Small wrappers around vLLM behaviour, each with symptom, cause and removal condition."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from vllm.distributed.parallel_state import get_pp_group
from vllm.platforms import current_platform

from .exchange import gather

_CPU_BINDING, _CPU_THREADS = "VLLM_CPU_OMP_THREADS_BIND", "OMP_NUM_THREADS"
# What Platform.update_block_size_for_backend may set on a stage that has attention layers.
_BLOCK_SIZE_FIELDS = ("block_size", "mamba_block_size", "mamba_page_size_padded")


def keep_to_loopback() -> None:
    """Let gloo listen on loopback only.

    Symptom: gloo binds to the address of the host name, reachable from outside, although all
    stages share one machine. Standing: there is no vLLM option for it.
    """
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")


@contextmanager
def no_device_collectives() -> Iterator[None]:
    """While a worker initialises its device, build no device-collective group.

    Symptom: XPUWorker.init_device runs an all_reduce over oneCCL whenever there is more than
    one worker (xpu_worker.py, 0.20 to 0.33); oneCCL hangs under a narrow ZE_AFFINITY_MASK and
    livelocks between Arc cards. On CUDA the same call builds NCCL communicators. Neither is
    used between stages. Can go when vLLM takes the backend from an option.
    """
    if current_platform.is_cpu():
        yield
        return
    os.environ.setdefault("VLLM_DISABLE_PYNCCL", "1")
    platform, distributed = type(current_platform), torch.distributed
    backend, has_xccl = platform.dist_backend, distributed.is_xccl_available
    platform.dist_backend = "gloo"
    distributed.is_xccl_available = lambda: False
    try:
        yield
    finally:
        platform.dist_backend = backend
        distributed.is_xccl_available = has_xccl


def keep_progress_bars_to_threads() -> None:
    """Let tqdm, in a worker, lock among threads only.

    Symptom: its first progress bar makes a semaphore in /dev/shm to share with processes it never
    has (tqdm.std.TqdmDefaultWriteLock), and a killed worker leaves it there until the server
    ends: one more for every restart of a stage. Standing.
    """
    from tqdm import tqdm

    tqdm.set_lock(threading.RLock())


def allocate_intermediate_tensors(worker: Any) -> None:
    """Give a later stage the buffer its runner copies the boundary into.

    Symptom: ``assert self.intermediate_tensors is not None`` (gpu_model_runner.
    sync_and_gather_intermediate_tensors, 0.32.0) on the first request with more than one
    stage on the CPU build: the buffer is only made in ``_dummy_run``, which CPU skips.
    Idempotent; can go when the CPU runner makes it itself.
    """
    runner = worker.model_runner
    if get_pp_group().is_first_rank or getattr(runner, "intermediate_tensors", 0) is not None:
        return
    runner.intermediate_tensors = runner.model.make_empty_intermediate_tensors(
        batch_size=runner.max_num_tokens,
        dtype=runner.model_config.dtype,
        device=runner.device,
    )


def agree_on_block_sizes(worker: Any) -> None:
    """Make a stage without attention layers use the block sizes of those that have some.

    Symptom: on a hybrid model, a stage of linear-attention layers alone never aligns its state
    page to the attention page (Platform.update_block_size_for_backend returns early when a
    worker has no attention backend, 0.32.0), so its groups do not match the other stages'.
    Collective over all stages. Can go when vLLM computes block sizes from the whole model.
    """
    cache_config = worker.cache_config
    backends = current_platform._find_non_ssm_backends(worker.vllm_config)
    mine = {field: getattr(cache_config, field, None) for field in _BLOCK_SIZE_FIELDS}
    stages = gather({"attention": bool(backends), "sizes": mine})
    with_attention = [stage["sizes"] for stage in stages if stage["attention"]]
    if backends or not with_attention:
        return
    for field, size in with_attention[0].items():
        setattr(cache_config, field, size)


def agree_on_batch_order(worker: Any) -> None:
    """Make all stages keep the requests of a batch in the same order.

    Symptom: wrong tokens without any error when one stage has linear-attention layers and
    another has none (bundled model, cut 7,1: 2 of 12 outputs wrong at margins up to 0.69). The
    runner moves decodes before prefills when one of its own backends asks for it
    (gpu_model_runner.calculate_reorder_batch_threshold, 0.32.0): stages with different backends
    order differently, and rows of the boundary are taken for other requests' rows. The lowest
    threshold serves all, by vLLM's own rule for the backends within one stage. Collective over
    all stages; call after the caches were made. Can go when vLLM decides it for all stages.
    """
    runner = worker.model_runner
    thresholds = gather(runner.reorder_batch_threshold)
    asked = [threshold for threshold in thresholds if threshold is not None]
    runner.reorder_batch_threshold = min(asked) if asked else None


def skip_state_copies_without_state(worker: Any) -> None:
    """Let a stage without recurrent layers run a hybrid model with prefix caching on.

    Symptom: ``AssertionError: no mamba layers in the model`` at the first step
    (gpu_model_runner.execute_model -> mamba_utils.get_mamba_groups, 0.32.0) in cache mode
    ``align``, the default for hybrids; seen as a KeyError in the scheduler. Such a stage has no
    state to copy between blocks, which is all the mode does there. Call after the caches were
    made. Can go when vLLM accepts an empty set of groups.
    """
    from vllm.config import get_layers_from_vllm_config
    from vllm.model_executor.layers.mamba.abstract import MambaBase

    cache_config = worker.cache_config
    if getattr(cache_config, "mamba_cache_mode", None) != "align":
        return
    if not get_layers_from_vllm_config(worker.vllm_config, MambaBase):
        cache_config.mamba_cache_mode = "none"


@contextmanager
def cpu_stages_share_cores(stages: int) -> Iterator[None]:
    """On a CPU host, split the cores among the stages started within, unless the user bound them.

    Symptoms (ompmultiprocessing, 0.32.0): "Not enough allowed NUMA nodes to bind threads of 2
    local CPUWorkers" at start on any machine with fewer memory nodes than stages; with binding
    off, every stage starts a thread per core and they spin against each other (bundled model,
    two stages on two cores: 28 s for what takes 8 s with one thread each). Runs in the
    executor's process; the stages inherit the variables, which are put back afterwards.
    """
    if not current_platform.is_cpu() or stages == 1:
        yield
        return
    before = {name: os.environ.get(name) for name in (_CPU_BINDING, _CPU_THREADS)}
    os.environ.setdefault(_CPU_BINDING, "nobind")
    if os.environ[_CPU_BINDING] == "nobind":
        cores = len(os.sched_getaffinity(0))
        os.environ.setdefault(_CPU_THREADS, str(max(1, cores // stages)))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)


def cache_tensors(caches: Any) -> Iterator[torch.Tensor]:
    """All tensors of a runner's ``kv_caches``, however it nests them."""
    if isinstance(caches, torch.Tensor):
        yield caches
    elif isinstance(caches, dict):
        yield from cache_tensors(list(caches.values()))
    elif isinstance(caches, list | tuple):
        for entry in caches:
            yield from cache_tensors(entry)


def storage_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes behind ``tensors``, shared storage counted once."""
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values())


def model_bytes(model: torch.nn.Module) -> int:
    """Bytes of a model's parameters and buffers on this stage, shared storage counted once."""
    return storage_bytes([*model.parameters(), *model.buffers()])
