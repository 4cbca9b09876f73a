"""Every hook of arcpp once. Each does nothing until its variable is set.

EXAMPLE_DEVICES        devices of the machine that is planned for: "B70=31023MiB@608;B580=11605MiB"
EXAMPLE_LAYER_BYTES    bytes that every layer takes beyond its weights in the checkpoint, in vLLM
EXAMPLE_FIRST_LAYERS   layers on the first of two stages
EXAMPLE_COUNT_HOPS     say how much crossed between stages, when the server stops
EXAMPLE_ATTEMPTS       give up after so many faults without a token between them
EXAMPLE_TELL_FAULTS    say which fault the server recovered from, and how long it took
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from arcpp import hookimpl
from arcpp.devices import Device, parse_device
from arcpp.link import LinkEnd, LinkSender
from arcpp.plan import Plan
from arcpp.planner import make_plan
from arcpp.profile import ModelProfile
from arcpp.request import PlanRequest
from arcpp.supervise import Fault, FaultAction


@hookimpl
def arcpp_probe_devices() -> list[Device]:
    """Plan on a laptop for the machine the model will run on."""
    written = os.environ.get("EXAMPLE_DEVICES", "")
    return [parse_device(text) for text in written.split(";") if text]


@hookimpl(wrapper=True)
def arcpp_model_profile(host: str | None) -> Iterator[None]:
    """Count what a patched model adds: a wrapper takes the answer of whoever was asked inside."""
    profile: ModelProfile = yield
    extra = int(os.environ.get("EXAMPLE_LAYER_BYTES", "0")) if host == "vllm" else 0
    layers = (replace(layer, weights_bytes=layer.weights_bytes + extra) for layer in profile.layers)
    return replace(profile, layers=tuple(layers))


@hookimpl
def arcpp_plan(
    profile: ModelProfile, devices: Sequence[Device], request: PlanRequest
) -> Plan | None:
    """A rule of one's own for the cut; budgets and predictions stay arcpp's."""
    first = int(os.environ.get("EXAMPLE_FIRST_LAYERS", "0"))
    if not first or len(devices) != 2 or request.partition is not None:
        return None
    counts = (first, len(profile.layers) - first)
    return make_plan(profile, devices, replace(request, partition=counts))


@hookimpl
def arcpp_plan_made(plan: Plan, stage: int | None) -> None:
    """Tell somebody: here, the log."""
    if stage is not None:
        own = plan.stages[stage]
        _say(f"stage {stage} of {len(plan.stages)}: layers {own.low} to {own.high - 1}")


@hookimpl
def arcpp_open_link(end: LinkEnd) -> Any:
    """A link of one's own. Both ends get the same kind; the receiving end needs no change here."""
    if "EXAMPLE_COUNT_HOPS" not in os.environ:
        return None
    import torch

    from arcpp.backends.gloo_link import GlooReceiver, GlooSender

    if end.sends:
        return CountingSender(GlooSender(end.name, end.peer, end.group))
    receiver = GlooReceiver(end.name, end.peer, end.group, torch.device(end.device))
    receiver.kind = CountingSender.kind
    return receiver


@hookimpl
def arcpp_fault(attempt: int) -> FaultAction | None:
    """A rule of one's own for when a person is needed; the budget of restarts stays arcpp's."""
    most = int(os.environ.get("EXAMPLE_ATTEMPTS", "0"))
    return FaultAction.GIVE_UP if most and attempt > most else None


@hookimpl
def arcpp_recovered(fault: Fault, seconds: Mapping[str, float]) -> None:
    """Tell somebody: here, the log."""
    if "EXAMPLE_TELL_FAULTS" in os.environ:
        _say(f"recovered from {fault.kind} in {sum(seconds.values()):.1f} s")


class CountingSender(LinkSender):
    """Another sender, and what went through it."""

    kind = "counted gloo"

    def __init__(self, sender: LinkSender) -> None:
        self.name, self._sender = sender.name, sender
        self._hops = self._bytes = 0

    def send(self, tensors: Mapping[str, Any], *, timeout: float) -> None:
        self._sender.send(tensors, timeout=timeout)
        if not self._hops:
            _say(f"{self.name}: the first hop over {self.kind}")
        self._hops += 1
        self._bytes += sum(tensor.nbytes for tensor in tensors.values())

    def close(self) -> None:
        if self._hops:
            _say(f"{self.name}: {self._hops} hops, {self._bytes} bytes")
        self._hops = 0
        self._sender.close()


def _say(text: str) -> None:
    print(f"example plugin: {text}", file=sys.stderr, flush=True)
