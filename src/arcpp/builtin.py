"""arcpp's own planning and probing, as a plugin: asked after every other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from . import hookimpl
from .devices import Device
from .plan import Plan
from .planner import make_plan
from .probe.choose import devices_for
from .probe.machine import this_machine
from .profile import ModelProfile, load_profile
from .request import PlanRequest
from .settings import Settings


@hookimpl(trylast=True)
def arcpp_model_profile(
    path: Path, weights_dtype: str | None, dtype: str | None, host: str | None
) -> ModelProfile:
    """The profile arcpp reads itself."""
    return load_profile(path, weights_dtype=weights_dtype, dtype=dtype, host=host)


@hookimpl(trylast=True)
def arcpp_plan(profile: ModelProfile, devices: Sequence[Device], request: PlanRequest) -> Plan:
    """The best plan by arcpp's own objective."""
    return make_plan(profile, devices, request)


@hookimpl(trylast=True)
def arcpp_probe_devices(settings: Settings, host: str | None) -> list[Device] | None:
    """What torch, Level Zero, OpenVINO and sysfs find, in PCI order."""
    return devices_for(this_machine().devices, host, settings.reserve) or None
