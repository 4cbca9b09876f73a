"""Devices and their memory as several sources see them.

identity      PCI addresses, UUIDs and masks
reading       figures of one source, and which of them can be believed
sighting      a device as one source sees it: the port of a source
merge         sightings of all sources -> devices in PCI order
pci           source: Intel and NVIDIA display controllers in sysfs (Linux)
host_memory   source: the CPU's memory under its control groups
child         run a source in a process of its own, with a deadline
machine       ask every source of this machine
choose        devices for a plan, when none was declared

Sources that need a runtime (torch, Level Zero, OpenVINO) are in :mod:`arcpp.backends`; they run
in child processes, because a driver call may hang or crash.
"""

from __future__ import annotations

from .merge import FoundDevice, merge
from .reading import DECLARED, HOST, Reading, Rejected, Trial, Verdict, after_trial, judge
from .sighting import CUDA, OTHER, XPU, Sighting

__all__ = [
    "CUDA",
    "DECLARED",
    "HOST",
    "OTHER",
    "XPU",
    "FoundDevice",
    "Reading",
    "Rejected",
    "Sighting",
    "Trial",
    "Verdict",
    "after_trial",
    "judge",
    "merge",
]
