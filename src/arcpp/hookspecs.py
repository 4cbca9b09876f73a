"""Every hook of arcpp. A plugin implements any of them; docs/hooks.md has a page on each.

A plugin marks its functions with ``arcpp.hookimpl`` and may leave out parameters it does not
need. Where the first result counts, plugins are asked before what is built in, the one that was
loaded last before the others; None passes the question on.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pluggy import HookspecMarker

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .devices import Device
    from .link import LinkEnd, LinkReceiver, LinkSender
    from .plan import Plan
    from .profile import ModelProfile
    from .request import PlanRequest
    from .settings import Settings
    from .supervise import Fault, FaultAction

hookspec = HookspecMarker("arcpp")


@hookspec
def arcpp_probe_devices(settings: Settings, host: str | None) -> list[Device] | None:
    """Devices of this machine that stages may run on, in the order stages would use them.

    settings: of this process. host: "vllm" or "openvino", for which numbers differ (a host may
    see fewer devices, or measure them its own way); None for every device of the machine.

    Returns the devices found, or None for none. All answers are joined; of devices with one
    name the first answer counts, plugins before what is built in. May block for seconds.
    """


@hookspec(firstresult=True)
def arcpp_model_profile(
    path: Path, weights_dtype: str | None, dtype: str | None, host: str | None
) -> ModelProfile | None:
    """Sizes of a model, for an architecture or a format arcpp does not know.

    path: a folder with config.json, or a bare config.json. weights_dtype: the format in which
    weights are counted, None as they are stored. dtype: of activations, None for the model's.
    host: "vllm" or "openvino", which will run the model and may read other files of it, or keep
    them in another form; None where it is not known.

    Returns None for models that are none of the plugin's business. Raises BadModel,
    UnknownModel or BadInput. Must return the same in every process. May read headers.
    """


@hookspec(firstresult=True)
def arcpp_plan(
    profile: ModelProfile, devices: Sequence[Device], request: PlanRequest
) -> Plan | None:
    """The plan: which layers go on which device.

    profile: of the model. devices: one per stage, in stage order. request: every option; a
    partition in it must be kept.

    Returns None to leave it to arcpp. Raises DoesNotFit or BadInput. Must be deterministic:
    every stage computes the plan for itself, and stages whose plans differ refuse to start.
    Must not block.
    """


@hookspec
def arcpp_plan_made(plan: Plan, settings: Settings, stage: int | None) -> None:
    """Told of the plan that will run, after all stages agreed and before weights are read.

    plan: what all stages agreed on. settings: of this process. stage: index of this process's
    stage, 0 where one process has all of them; None in ``arcpp plan``, where nothing will run.
    What is raised ends the start. Every stage waits for it, so it should not block.
    """


@hookspec(firstresult=True)
def arcpp_open_link(end: LinkEnd, settings: Settings) -> LinkSender | LinkReceiver | None:
    """Open one end of the link between two adjacent stages.

    end: which end, of which link, on which device. settings: of this process.

    Returns a LinkSender where ``end.sends``, otherwise a LinkReceiver, or None to leave it to
    another implementation. Both ends must be answered alike: ends of different ``kind`` refuse
    to start. Every process opens the end it receives from before the one it sends to, so that
    an implementation may meet its other end while opening. May block for the other end, with a
    deadline.
    """


@hookspec(firstresult=True)
def arcpp_fault(fault: Fault, attempt: int, settings: Settings) -> FaultAction | None:
    """Told of a fault, and asked what to do about it.

    fault: the cause of the incident, of everything the stages said. attempt: 1 for the first
    fault, and one more for each that follows before any token was made. settings: of this
    process.

    Returns RESTART or GIVE_UP, or None to leave it to arcpp, which restarts as long as the
    budget lasts. RESTART cannot go beyond that budget. What is raised ends the server. Requests
    wait meanwhile: must not block.
    """


@hookspec
def arcpp_recovered(fault: Fault, seconds: Mapping[str, float], settings: Settings) -> None:
    """Told that stages run again after a fault.

    fault: as given to arcpp_fault. seconds: by phase ("detect", "stop", "start", ...), in the
    order in which they happened. settings: of this process. What is raised is not a fault of a
    stage: it ends the server. Should not block.
    """
