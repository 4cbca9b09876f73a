"""Ask every source of this machine for its devices."""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from . import child
from .merge import FoundDevice, merge
from .pci import pci_sightings
from .sighting import Sighting, from_json

#: Source -> the module that answers for it in a child process, and the package it needs.
SOURCES: Mapping[str, tuple[str, str]] = {
    "torch": ("arcpp.backends.torch_devices", "torch"),
    "levelzero": ("arcpp.backends.levelzero_devices", "pyzes"),
    "openvino": ("arcpp.backends.openvino_devices", "openvino"),
}
DEADLINE_S = 90.0  # importing torch takes half a minute on a slow disk


@dataclass(frozen=True)
class Machine:
    """Devices of this machine, and how each source did.

    outcomes: source -> how its child ended; sources whose package is missing are not there.
    """

    devices: tuple[FoundDevice, ...]
    outcomes: Mapping[str, child.Outcome] = field(default_factory=dict)


def probe(root: Path = Path("/"), *, deadline_s: float = DEADLINE_S) -> Machine:
    """All devices that any source sees, in PCI order. Takes as long as the slowest source.

    A source that crashes, hangs or is not installed is left out. Never raises for a device's
    or a driver's sake.
    """
    children = {
        source: child.Child(module, deadline_s=deadline_s)
        for source, (module, package) in SOURCES.items()
        if installed(package)
    }
    outcomes = {source: started.outcome() for source, started in children.items()}
    seen: list[Sighting] = pci_sightings(root)
    for source in SOURCES:
        if source in outcomes:
            seen += sightings_of(outcomes[source])
    return Machine(merge(seen, os.environ), outcomes)


@functools.cache
def this_machine() -> Machine:
    """:func:`probe`, asked once per process."""
    return probe()


def sightings_of(outcome: child.Outcome) -> list[Sighting]:
    """Devices in a child's answer; what is not of the right form is left out."""
    found = []
    values = outcome.data.get("sightings", [])
    for value in values if isinstance(values, list) else []:
        try:
            found.append(from_json(value))
        except (KeyError, TypeError):
            continue
    return found


def installed(package: str) -> bool:
    """Whether ``package`` can be imported, without importing it."""
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):
        return False
