"""What each possible stage takes, fast: prefix sums over layers, roles decided once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from .devices import Device
from .memory.layout import CacheLayout
from .memory.placement import stage_roles
from .memory.workspace import (
    activation_bytes,
    delta_workspace,
    logits_bytes,
    processor_activation_bytes,
    rope_bytes,
)
from .problem import Need
from .profile.model import ModelProfile
from .request import PlanRequest

#: Assumed where no bandwidth is given: an Arc card (B580), and dual-channel DDR5-4800 as it reads.
_CARD_GB_S, _CPU_GB_S = 456.0, 60.0


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
                vision=request.host != "openvino",
            )
            for index in range(len(devices))
        ]
        self._role_bytes = [sum(roles.values()) for roles in self._roles]
        tail = self._roles[-1]
        head = profile.roles["embed"] if profile.tied else tail.get("lm_head", 0)
        self._tail_active = tail.get("final_norm", 0) + head
        tokens = request.batched_tokens
        self._activations = [
            processor_activation_bytes(profile, tokens)
            if request.host == "openvino" and (device.is_cpu or request.platform == "cpu")
            else activation_bytes(profile, tokens)
            for device in devices
        ]
        self._delta = 0 if profile.delta is None else delta_workspace(profile.delta, tokens)
        self._rope = rope_bytes(profile)
        self._sequences = request.sequences
        self._logits = logits_bytes(profile, min(self._sequences, tokens))
        self._per_byte = decode_prices(devices)
        self._needs: dict[tuple[int, int, int], Need | None] = {}

    def use(self, index: int, low: int, high: int) -> StageUse:
        """What stage ``index`` over layers [low, high) takes."""
        return StageUse(
            tuple(self._roles[index]),
            self._weights[high] - self._weights[low] + self._role_bytes[index],
            self._active_bytes(index, low, high),
            self._workspace(index, low, high),
            self._layout.fixed_state(index, low, high, self._sequences),
        )

    def need(self, index: int, low: int, high: int) -> Need | None:
        """The solver's view of such a stage, remembered; None where the host cannot run it."""
        key = index, low, high
        try:
            return self._needs[key]
        except KeyError:
            need = self._needs[key] = self._need(index, low, high)
            return need

    def _need(self, index: int, low: int, high: int) -> Need | None:
        if not self._layout.runs(index, low, high):
            return None
        per_block = self._layout.bytes_per_block(index, low, high)
        limit = self._layout.block_limit(index, low, high, self._sequences)
        cost = self._active_bytes(index, low, high) * self._per_byte[index]
        if self._request.kv_memory is not None:
            return Need(0, per_block, cost, limit)
        fixed = self._weights[high] - self._weights[low] + self._role_bytes[index]
        fixed += self._workspace(index, low, high)
        fixed += self._layout.fixed_state(index, low, high, self._sequences)
        return Need(fixed, per_block, cost, limit)

    def _active_bytes(self, index: int, low: int, high: int) -> int:
        tail = self._tail_active if index == self._last else 0
        return self._active[high] - self._active[low] + tail

    def _workspace(self, index: int, low: int, high: int) -> int:
        size = self._activations[index]
        if self._recurrent[high] > self._recurrent[low]:
            size += self._delta
        if self._attending[high] > self._attending[low]:
            size += self._rope
        return size + self._logits if index == self._last else size


def decode_prices(devices: Sequence[Device]) -> list[int]:
    """Time to read a byte per stage, in integers so that ties are exact."""
    return [round(1e6 / speed) for speed in assumed_bandwidths(devices)]


def unknown_bandwidths(devices: Sequence[Device]) -> list[Device]:
    """Devices whose bandwidth nobody gave."""
    return [device for device in devices if device.bandwidth_gb_s is None]


def assumed_bandwidths(devices: Sequence[Device]) -> list[float]:
    """Memory bandwidth per stage in 10**9 bytes per second, for comparing splits only.

    What nobody gave is assumed: for a card that of the slowest card that is known, so that cards
    of unknown speed tie; for a processor two channels of memory.
    """
    cards = [d.bandwidth_gb_s for d in devices if d.bandwidth_gb_s is not None and not d.is_cpu]
    card = min(cards, default=_CARD_GB_S)
    return [
        device.bandwidth_gb_s or (min(_CPU_GB_S, card) if device.is_cpu else card)
        for device in devices
    ]
