"""As many requests at once as there is recurrent state for, in scheduler and workers alike.

Symptom: with more running requests than state blocks, a hybrid's scheduler admits requests that
it then preempts for want of blocks, again and again; with full graphs it does not start
("max_num_seqs exceeds available Mamba cache blocks", compilation.py, 0.32.0). The number of
blocks is known when the caches are made; the scheduler is built after that, from the same
configuration. Can go when vLLM lowers max_num_seqs itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vllm.logger import init_logger

logger = init_logger("vllm.arcpp.concurrency")


def limit(holder: Any, most: int) -> None:
    """Let ``holder``, executor or worker, run at most ``most`` requests at once.

    In the executor's process the scheduler reads it, later; in a worker what is built with the
    caches. Buffers a worker has already stay as large as they are.
    """
    scheduler = holder.scheduler_config
    scheduler.max_num_seqs = min(scheduler.max_num_seqs, most)
    runner = getattr(holder, "model_runner", None)
    if runner is not None:
        runner.max_num_reqs = min(runner.max_num_reqs, most)


def bound(vllm_config: Any, kv_cache_configs: Sequence[Any]) -> int | None:
    """Most requests that can run at once in these caches, or None when nothing bounds them.

    Every running request holds the state blocks vLLM gives it in each group of recurrent layers,
    and one block at least in each group of attention layers. One block is never handed out.
    Groups are the same on all ranks, and so is the number of blocks. Says so, once, when it is
    less than ``max_num_seqs``.
    """
    from vllm.v1.kv_cache_interface import MambaSpec

    groups = [group.kv_cache_spec for group in kv_cache_configs[0].kv_cache_groups]
    states = [spec for spec in groups if isinstance(spec, MambaSpec)]
    state = sum(-(-s.max_memory_usage_bytes(vllm_config) // s.page_size_bytes) for s in states)
    each = state + len(groups) - len(states)
    if not each:
        return None
    blocks = min(config.num_blocks for config in kv_cache_configs)
    most = max(1, (blocks - 1) // each)
    asked = vllm_config.scheduler_config.max_num_seqs
    if most < asked:
        logger.warning(
            "arcpp: max_num_seqs %d -> %d: of %d blocks one is never used, and each request "
            "takes %d for recurrent state and %d for attention at the least",
            *(asked, most, blocks, state, each - state),
        )
    return most
