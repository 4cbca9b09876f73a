"""What each possible stage takes, fast: prefix sums over layers, roles decided once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from .devices import Device
from .memory.layout import CacheLayout
from .memory.placement import stage_roles
from .memory.workspace import activation_bytes, delta_workspace, logits_bytes, rope_bytes
from .profile.model import ModelProfile
from .request import PlanRequest
from .solver import Need


@dataclass(frozen=True)
class StageUse:
    """What one stage takes beside its blocks. active: weights one token reads. state: tables
    beside the blocks (OpenVINO only)."""

    roles: tuple[str, ...]
    weights: int
    active: int
    workspace: int
    state: int


class Costs:
    """Costs of every stage of one planning task."""

    def __init__(
        self,
        profile: ModelProfile,
        layout: CacheLayout,
        devices: Sequence[Device],
        request: PlanRequest,
    ) -> None:
        self._layout, self._request = layout, request
        self._last, self._layers = len(devices) - 1, len(profile.layers)
        self._weights = [0, *accumulate(layer.weights_bytes for layer in profile.layers)]
        self._active = [0, *accumulate(layer.active_bytes for layer in profile.layers)]
        attending = [1 if layer.kv is not None else 0 for layer in profile.layers]
        self._attending = [0, *accumulate(attending)]
        recurrent = [1 if layer.state is not None else 0 for layer in profile.layers]
        self._recurrent = [0, *accumulate(recurrent)]
        self._roles = [
            stage_roles(
                profile,
                index,
                len(devices),
                dropped=request.dropped_roles,
                spec_tokens=request.spec_tokens,
            )
            for index in range(len(devices))
        ]
        self._role_bytes = [sum(roles.values()) for roles in self._roles]
        tail = self._roles[-1]
        head = profile.roles["embed"] if profile.tied else tail.get("lm_head", 0)
        self._tail_active = tail.get("final_norm", 0) + head
        tokens = request.batched_tokens
        self._activations = activation_bytes(profile, tokens)
        self._delta = 0 if profile.delta is None else delta_workspace(profile.delta, tokens)
        self._rope = rope_bytes(profile)
        self._logits = logits_bytes(profile, min(request.sequences, tokens))
        self._per_byte = _decode_prices(devices)
        self._blocks: dict[tuple[int, int], int] = {}

    def bytes_per_block(self, low: int, high: int) -> int:
        """The layout's, remembered."""
        found = self._blocks.get((low, high))
        if found is None:
            found = self._blocks[low, high] = self._layout.bytes_per_block(low, high)
        return found

    def use(self, index: int, low: int, high: int) -> StageUse:
        """What stage ``index`` over layers [low, high) takes."""
        return StageUse(
            tuple(self._roles[index]),
            self._weights[high] - self._weights[low] + self._role_bytes[index],
            self._active_bytes(index, low, high),
            self._workspace(index, low, high),
            self._layout.fixed_state(low, high, self._request.sequences),
        )

    def need(self, index: int, low: int, high: int) -> Need | None:
        """The solver's view of such a stage; None where the host cannot run it."""
        if not self._layout.runs(low, high):
            return None
        per_block = self.bytes_per_block(low, high)
        limit = self._layout.block_limit(low, high)
        cost = self._active_bytes(index, low, high) * self._per_byte[index]
        if self._request.kv_memory is not None:
            return Need(0, per_block, cost, limit)
        fixed = self._weights[high] - self._weights[low] + self._role_bytes[index]
        fixed += self._workspace(index, low, high)
        fixed += self._layout.fixed_state(low, high, self._request.sequences)
        return Need(fixed, per_block, cost, limit)

    def _active_bytes(self, index: int, low: int, high: int) -> int:
        tail = self._tail_active if index == self._last else 0
        return self._active[high] - self._active[low] + tail

    def _workspace(self, index: int, low: int, high: int) -> int:
        size = self._activations
        if self._recurrent[high] > self._recurrent[low]:
            size += self._delta
        if self._attending[high] > self._attending[low]:
            size += self._rope
        return size + self._logits if index == self._last else size


def _decode_prices(devices: Sequence[Device]) -> list[int]:
    """Time to read a byte per stage, in integers so that ties are exact; 0 when unknown."""
    prices = []
    for device in devices:
        if device.bandwidth_gb_s is None:
            return [0] * len(devices)
        prices.append(round(1e6 / device.bandwidth_gb_s))
    return prices
