"""Source: display controllers in sysfs. Reads files only; works without any driver.

Finds Intel cards that torch or Level Zero cannot see (no driver, a CPU build of torch), which
kernel module drives them, and whether a monitor hangs on one of their connectors.
"""

from __future__ import annotations

from pathlib import Path

from .identity import pci_address
from .sighting import CUDA, OTHER, XPU, Sighting

_INTEL, _NVIDIA = "0x8086", "0x10de"
_KINDS = {_INTEL: XPU, _NVIDIA: CUDA}
_NAMES = {_INTEL: "Intel GPU", _NVIDIA: "NVIDIA GPU"}
_DISPLAY_CLASS = "0x03"
#: PCI ids of cards whose name matters before any driver answers (pci.ids).
_MODELS = {
    "0x56a0": "Intel Arc A770",
    "0x56a1": "Intel Arc A750",
    "0x56a2": "Intel Arc A580",
    "0x56a5": "Intel Arc A380",
    "0x56a6": "Intel Arc A310",
    "0xe20b": "Intel Arc B580",
    "0xe20c": "Intel Arc B570",
    "0xe211": "Intel Arc Pro B60",
    "0xe212": "Intel Arc Pro B50",
    "0xe223": "Intel Arc Pro B70",
}


def pci_sightings(root: Path = Path("/")) -> list[Sighting]:
    """Display controllers of Intel and NVIDIA, in PCI order. Never raises."""
    folder = root / "sys/bus/pci/devices"
    try:
        entries = sorted(folder.iterdir())
    except OSError:
        return []
    found: list[Sighting] = []
    for entry in entries:
        vendor, address = _word(entry / "vendor"), pci_address(entry.name)
        if address is None or not _word(entry / "class").startswith(_DISPLAY_CLASS):
            continue
        if vendor not in _KINDS:
            continue
        device = _word(entry / "device")
        found.append(
            Sighting(
                source="pci",
                index=len(found),
                name=_MODELS.get(device, f"{_NAMES[vendor]} {device}"),
                kind=_KINDS.get(vendor, OTHER),
                pci=address,
                integrated=_integrated(vendor, address),
                display=_drives_display(entry),
                driver=_driver(entry),
            )
        )
    return found


def render_nodes(root: Path = Path("/")) -> list[Path]:
    """Device files that compute runtimes open (``/dev/dri/renderD*``)."""
    try:
        return sorted((root / "dev/dri").glob("renderD*"))
    except OSError:
        return []


def _integrated(vendor: str, address: str) -> bool | None:
    """Intel's integrated GPUs sit at 0000:00:02.0; other addresses do not say."""
    if vendor == _INTEL and address == "0000:00:02.0":
        return True
    return None


def _drives_display(entry: Path) -> bool | None:
    """Whether a connector of the card has a monitor; None when connectors cannot be seen."""
    statuses = [_word(file) for file in entry.glob("drm/card*/card*-*/status")]
    return any(status == "connected" for status in statuses) if statuses else None


def _driver(entry: Path) -> str | None:
    try:
        return (entry / "driver").resolve(strict=True).name
    except OSError:
        return None


def _word(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii", errors="replace").strip().lower()
    except OSError:
        return ""
