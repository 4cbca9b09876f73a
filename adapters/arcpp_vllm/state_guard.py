"""State blocks of a request that begins hold zeros, and those in use hold numbers.

Symptom: garbled text ("2343#!/23283##%", endless "!") once blocks of recurrent state are used
again. vLLM 0.32 zeroes new attention blocks (Scheduler._get_new_block_ids_to_zero), never those
of Mamba groups: it relies on the kernels to start from nothing where ``has_initial_state`` is
false (gdn_attn.py), and every kernel, fused or a vendor's own, has to get that right. Here the
blocks are zeroed on every stage, on the stream of the step and before it, for each request with
no computed tokens. For 0.30 to 0.33; can go when vLLM zeroes state blocks too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from vllm.config import get_layers_from_vllm_config
from vllm.logger import init_logger
from vllm.model_executor.layers.mamba.abstract import MambaBase
from vllm.v1.kv_cache_interface import MambaSpec

from arcpp.backends.torch_state import TorchTables
from arcpp.settings import Settings

from .recovery.finite import FiniteCheck
from .state_canary import Canary

logger = init_logger("vllm.arcpp.state")

_AT_A_LOOK = 8  # requests whose states are looked at at a time
_NULL_BLOCK = 0  # stands for "no state kept here", and is nobody's


class StateGuard:
    """Of one stage, for as long as its caches live.

    groups: index of a cache group -> tables of its layers on this stage.
    """

    _canary: Canary | None = None

    def __init__(self, worker: Any, kv_cache_config: Any, settings: Settings) -> None:
        self._runner, self._settings = worker.model_runner, settings
        self._steps = 0
        layers = get_layers_from_vllm_config(worker.vllm_config, MambaBase)
        self.groups: dict[int, TorchTables] = {}
        for number, group in enumerate(kv_cache_config.kv_cache_groups):
            here = [name for name in group.layer_names if name in layers]
            if isinstance(group.kv_cache_spec, MambaSpec) and here:
                self.groups[number] = TorchTables(_arrays(layers, here))
        if settings.state_canary and self.groups:
            self._canary = Canary.over(layers, kv_cache_config.kv_cache_groups)
        if worker.rank == 0:  # of all groups, even if none has a layer on this stage
            _say_dtype(kv_cache_config)

    def before_step(self, step: Any) -> None:
        """Zero the state blocks of requests that begin in ``step``, a SchedulerOutput."""
        if self._canary is not None:
            for new in step.scheduled_new_reqs:
                self._canary.arm_all(self._newest(new.req_id, new.block_ids))
        if not self._settings.zero_state or not self.groups:
            return
        for blocks in _beginning(step):
            for number, tables in self.groups.items():
                fresh = [block for block in blocks[number] if block != _NULL_BLOCK]
                if fresh:
                    tables.zero(fresh)

    def after_step(self, step: Any, finite: FiniteCheck) -> None:
        """Every ``state_check_every`` steps, have ``finite`` look at some of the states in use.

        With ``state_canary``, after each, raise StateCorrupt if one was written past its end.
        """
        every, names = self._settings.state_check_every, list(step.num_scheduled_tokens)
        if self._canary is not None and names:
            held = self._runner.requests
            newest = [self._newest(name, held[name].block_ids) for name in names]
            self._canary.settle({key: block for one in newest for key, block in one.items()})
        self._steps += bool(names)
        if not every or not names or not self.groups or self._steps % every:
            return
        first = self._steps // every * _AT_A_LOOK % len(names)  # others than the last time
        requests = [self._runner.requests[name] for name in (names + names)[first:][:_AT_A_LOOK]]
        for number, tables in self.groups.items():
            for block in {_latest(request.block_ids[number]) for request in requests}:
                if block != _NULL_BLOCK:  # views: no memory of the device is taken
                    rows = {name: array[block] for name, array in tables.tensors.items()}
                    finite.look(f"state block {block}", rows)

    def _newest(self, request: str, blocks: Sequence[list[int]]) -> dict[tuple[str, int], int]:
        """The block of the newest state, by request and group."""
        found = {(request, number): _latest(blocks[number]) for number in self.groups}
        return {key: block for key, block in found.items() if block != _NULL_BLOCK}


def _arrays(layers: dict[str, Any], names: list[str]) -> dict[str, torch.Tensor]:
    """The arrays of those layers, [blocks, ...] each."""
    return {
        f"{name}[{index}]": array
        for name in names
        for index, array in enumerate(layers[name].kv_cache)
    }


def _beginning(step: Any) -> Iterator[Any]:
    """Block ids, by group, of each request of ``step`` that has no computed tokens."""
    for new in step.scheduled_new_reqs:
        if new.num_computed_tokens == 0:
            yield new.block_ids
    cached = step.scheduled_cached_reqs
    for number, name in enumerate(cached.req_ids):
        resumed = name in cached.resumed_req_ids and cached.num_computed_tokens[number] == 0
        if resumed and cached.new_block_ids[number] is not None:
            yield cached.new_block_ids[number]


def _latest(blocks: list[int]) -> int:
    """The block that holds the newest state; the null block where there is none."""
    return next((block for block in reversed(blocks) if block != _NULL_BLOCK), _NULL_BLOCK)


def _say_dtype(kv_cache_config: Any) -> None:
    """Once, when the state-space part is kept in less than float32: errors add up over tokens."""
    for group in kv_cache_config.kv_cache_groups:
        dtypes = getattr(group.kv_cache_spec, "dtypes", ())
        if len(dtypes) > 1 and dtypes[-1] != torch.float32:
            logger.warning(
                "arcpp: recurrent state is kept in %s, not in float32 "
                "(--mamba-ssm-cache-dtype): rounding adds up over long contexts",
                str(dtypes[-1]).removeprefix("torch."),
            )
            return
