"""Plan: a partition with its budgets and predicted use. A value; made by :mod:`.planner`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .devices import is_cpu
from .partition import Partition

#: memory_source of a stage whose device nobody described.
NOT_GIVEN = "not given"


@dataclass(frozen=True)
class StagePlan:
    """One stage. Sizes are bytes.

    roles: what the stage holds beside layers. kv_bytes and state_bytes share one pool in vLLM:
    state is the part that recurrent state takes when as many requests of the effective length
    run as fit (one at least). total_bytes: weights, KV, state and workspace. device_bytes:
    all memory of the device; free_bytes: before margin and reserve; memory_source: where they
    come from. unused_bytes: free - reserve - margin
    - totals of all stages on the device. kv_available_bytes: what the stage may spend on its
    pool; num_blocks: blocks that would hold, of which the pool uses the least over all stages.
    """

    device: str
    low: int
    high: int
    roles: tuple[str, ...]
    weights_bytes: int
    active_bytes: int
    kv_bytes: int
    state_bytes: int
    workspace_bytes: int
    margin_bytes: int
    reserve_bytes: int
    total_bytes: int
    device_bytes: int
    free_bytes: int
    unused_bytes: int
    memory_source: str
    bytes_per_block: int
    kv_available_bytes: int
    num_blocks: int

    @property
    def on_cpu(self) -> bool:
        """Whether its device is a processor."""
        return is_cpu(self.device)

    def to_json(self) -> dict[str, Any]:
        """The stage's object in ``arcpp plan --json``."""
        return {
            "device": self.device,
            "layers": [self.low, self.high],
            "roles": list(self.roles),
            "weights_bytes": self.weights_bytes,
            "kv_bytes": self.kv_bytes,
            "state_bytes": self.state_bytes,
            "workspace_bytes": self.workspace_bytes,
            "margin_bytes": self.margin_bytes,
            "reserve_bytes": self.reserve_bytes,
            "total_bytes": self.total_bytes,
            "device_bytes": self.device_bytes,
            "free_bytes": self.free_bytes,
            "unused_bytes": self.unused_bytes,
            "memory_source": self.memory_source,
            "bytes_per_block": self.bytes_per_block,
            "kv_available_bytes": self.kv_available_bytes,
        }


@dataclass(frozen=True)
class Plan:
    """What will run. See design.md for what each number means.

    effective_len: the max-model-len the host runs with. max_model_len: the longest single
    request that fits. blocks_per_request: at the effective length.
    """

    host: str
    partition: Partition
    stages: tuple[StagePlan, ...]
    effective_len: int
    max_model_len: int
    kv_cache_tokens: int
    block_tokens: int
    num_blocks: int
    null_blocks: int
    blocks_per_request: int
    state_blocks_per_request: int
    max_num_seqs: int
    binding_stage: int
    decode_tokens_per_s_limit: float | None
    warnings: tuple[str, ...]
    host_args: tuple[str, ...]
    env: Mapping[str, str]

    def to_json(self) -> dict[str, Any]:
        """The object that ``arcpp plan --json`` prints; every size in bytes."""
        result: dict[str, Any] = {
            "fits": True,
            "host": self.host,
            "partition": list(self.partition.counts),
            "max_model_len": self.max_model_len,
            "effective_max_model_len": self.effective_len,
            "kv_cache_tokens": self.kv_cache_tokens,
            "block_tokens": self.block_tokens,
            "num_blocks": self.num_blocks,
            "blocks_per_request": self.blocks_per_request,
            "max_num_seqs": self.max_num_seqs,
            "binding_stage": self.binding_stage,
        }
        if self.decode_tokens_per_s_limit is not None:
            result["decode_tokens_per_s_limit"] = self.decode_tokens_per_s_limit
        result["stages"] = [stage.to_json() for stage in self.stages]
        result["warnings"] = list(self.warnings)
        result["vllm_args"] = list(self.host_args)
        result["env"] = dict(self.env)
        return result
