"""Fakes of what reports on Intel cards: torch with xpu, pyzes (Level Zero sysman), openvino.Core.

Each fake card says what a driver was seen to say (facts from public reports, named in the tests).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from arcpp.units import GiB

ARC_B580, ARC_A770, ARC_B70 = 0xE20B, 0x56A0, 0xE223


@dataclass
class Card:
    """One fake card. Memory figures are what each source says; an exception is raised."""

    name: str = "Intel(R) Arc(TM) B580 Graphics"
    device_id: int = ARC_B580
    pci: str = "0000:03:00.0"
    total: Any = 12 * GiB
    torch_free: Any = 11 * GiB
    sysman: Any = (12 * GiB, 11 * GiB)  # (size, free)
    openvino_total: Any = 12 * GiB
    integrated: bool = False
    uuid: bool = True  # the UUID holds the PCI address
    gives_pci: bool = True  # sysman gives the address

    @property
    def uuid_bytes(self) -> bytes:
        if not self.uuid:
            return bytes(16)
        domain, bus, rest = self.pci.split(":")
        device, function = rest.split(".")
        words = (0x8086, self.device_id, 0, int(domain, 16))
        raw = b"".join(word.to_bytes(2, "little") for word in words)
        return raw + bytes([int(bus, 16), int(device, 16), int(function)]) + bytes(5)


def _say(value: Any) -> Any:
    if isinstance(value, BaseException):
        raise value
    return value() if callable(value) else value


def fake_torch(
    cards: Sequence[Card],
    *,
    kind: str = "xpu",
    without: Sequence[str] = (),
    version: str = "2.13.0+xpu",
) -> Any:
    """A torch that shows ``cards``. without: names it lacks ("mem_get_info", "accelerator")."""

    def properties(index: int) -> Any:
        card = cards[index]
        return SimpleNamespace(
            name=card.name,
            total_memory=_say(card.total),
            is_integrated_gpu=card.integrated,
            uuid=card.uuid_bytes.hex() if card.uuid else "",
        )

    def memory(device: Any) -> Any:
        index = device if isinstance(device, int) else 0
        return _say(cards[index].torch_free), _say(cards[index].total)

    backend = SimpleNamespace(
        is_available=lambda: bool(cards),
        device_count=lambda: len(cards),
        get_device_properties=properties,
        mem_get_info=memory,
        memory_reserved=lambda index: 0,
        empty_cache=lambda: None,
    )
    torch = SimpleNamespace(
        __version__=version,
        version=SimpleNamespace(cuda=None, hip=None, xpu="20260000"),
        accelerator=SimpleNamespace(get_memory_info=memory),
        **{kind: backend},
    )
    for name in without:
        if name == "accelerator":
            torch.accelerator = SimpleNamespace()
        else:
            delattr(backend, name)
    return torch


class _Structure(ctypes.Structure):
    pass


class _Uuid(_Structure):
    _fields_ = (("id", ctypes.c_uint8 * 16),)


class _Core(_Structure):
    _fields_ = (
        ("flags", ctypes.c_uint32),
        ("maxMemAllocSize", ctypes.c_uint64),
        ("uuid", _Uuid),
        ("name", ctypes.c_char * 256),
    )


class _DeviceProperties(_Structure):
    _fields_ = (("stype", ctypes.c_int32), ("pNext", ctypes.c_void_p), ("core", _Core))


class _DeviceExtended(_Structure):
    _fields_ = (
        ("stype", ctypes.c_int32),
        ("pNext", ctypes.c_void_p),
        ("flags", ctypes.c_uint32),
    )


class _Address(_Structure):
    _fields_ = tuple((name, ctypes.c_uint32) for name in ("domain", "bus", "device", "function"))


class _PciProperties(_Structure):
    _fields_ = (("stype", ctypes.c_int32), ("address", _Address))


class _MemProperties(_Structure):
    _fields_ = (("stype", ctypes.c_int32), ("location", ctypes.c_int32))


class _MemState(_Structure):
    _fields_ = (("stype", ctypes.c_int32), ("free", ctypes.c_uint64), ("size", ctypes.c_uint64))


class _Handle(ctypes.c_void_p):
    pass


@dataclass
class FakePyzes:
    """The ``pyzes`` module over ``cards``; init: what zesInit returns."""

    cards: Sequence[Card]
    init: int = 0
    host_module: bool = False  # every card also shows a module in host memory
    zes_driver_handle_t: Any = _Handle
    zes_device_handle_t: Any = _Handle
    zes_mem_handle_t: Any = _Handle
    zes_device_properties_t: Any = _DeviceProperties
    zes_device_ext_properties_t: Any = _DeviceExtended
    zes_pci_properties_t: Any = _PciProperties
    zes_mem_properties_t: Any = _MemProperties
    zes_mem_state_t: Any = _MemState
    ZES_STRUCTURE_TYPE_DEVICE_PROPERTIES: int = 1
    ZES_STRUCTURE_TYPE_DEVICE_EXT_PROPERTIES: int = 0x2D
    ZES_STRUCTURE_TYPE_PCI_PROPERTIES: int = 2
    ZES_STRUCTURE_TYPE_MEM_PROPERTIES: int = 0xB
    ZES_STRUCTURE_TYPE_MEM_STATE: int = 0x1E
    calls: list[str] = field(default_factory=list)

    def zesInit(self, flags: int) -> int:  # noqa: N802
        self.calls.append("zesInit")
        return self.init

    def zesDriverGet(self, count: Any, handles: Any) -> int:  # noqa: N802
        return self._enumerate(1, count, handles, base=1)

    def zesDeviceGet(self, driver: Any, count: Any, handles: Any) -> int:  # noqa: N802
        return self._enumerate(len(self.cards), count, handles, base=100)

    def zesDeviceEnumMemoryModules(self, device: Any, count: Any, handles: Any) -> int:  # noqa: N802
        card = self._card(device)
        if isinstance(card.sysman, int):
            return card.sysman
        return self._enumerate(1 + self.host_module, count, handles, base=_value(device) * 10)

    def zesDeviceGetProperties(self, device: Any, properties: Any) -> int:  # noqa: N802
        card, out = self._card(device), properties._obj
        out.core.name = card.name.encode()
        out.core.uuid.id[:] = card.uuid_bytes
        out.core.flags = int(card.integrated)
        out.core.maxMemAllocSize = 4 * GiB
        return 0

    def zesDevicePciGetProperties(self, device: Any, properties: Any) -> int:  # noqa: N802
        card, out = self._card(device), properties._obj.address
        if not card.gives_pci:
            return 0x78000003
        domain, bus, rest = card.pci.split(":")
        place, function = rest.split(".")
        out.domain, out.bus = int(domain, 16), int(bus, 16)
        out.device, out.function = int(place, 16), int(function)
        return 0

    def zesMemoryGetProperties(self, module: Any, properties: Any) -> int:  # noqa: N802
        properties._obj.location = 1 if _value(module) % 10 == 0 else 0
        return 0

    def zesMemoryGetState(self, module: Any, state: Any) -> int:  # noqa: N802
        card = self.cards[_value(module) // 10 - 100]
        if isinstance(card.sysman, int):
            return card.sysman
        state._obj.size, state._obj.free = _say(card.sysman)
        return 0

    def _card(self, device: Any) -> Card:
        return self.cards[_value(device) - 100]

    @staticmethod
    def _enumerate(number: int, count: Any, handles: Any, *, base: int) -> int:
        if handles is None:
            count._obj.value = number
            return 0
        for index in range(number):
            handles[index] = _Handle(base + index)
        return 0


def _value(handle: Any) -> int:
    return int(handle.value if hasattr(handle, "value") else handle)


@dataclass
class FakeCore:
    """``openvino.Core`` over ``cards``, which it numbers in the order given, after the CPU."""

    cards: Sequence[Card]
    pci_text: Callable[[Card], Any] | None = None

    @property
    def available_devices(self) -> list[str]:
        if len(self.cards) == 1:
            return ["CPU", "GPU"]
        return ["CPU", *(f"GPU.{index}" for index in range(len(self.cards)))]

    def get_property(self, device: str, name: str) -> Any:
        card = self.cards[int(device.partition(".")[2] or 0)]
        domain, bus, rest = card.pci.split(":")
        place, function = rest.split(".")
        text = (
            f"{{domain: {int(domain, 16)} bus: {int(bus, 16)} "
            f"device: 0x{int(place, 16):x} function: {function}}}"
        )
        return {
            "FULL_DEVICE_NAME": f"{card.name} ({'i' if card.integrated else 'd'}GPU)",
            "DEVICE_TYPE": f"Type.{'INTEGRATED' if card.integrated else 'DISCRETE'}",
            "GPU_DEVICE_TOTAL_MEM_SIZE": card.openvino_total,
            "GPU_DEVICE_MAX_ALLOC_MEM_SIZE": 4 * GiB - 4096,
            "DEVICE_PCI_INFO": self.pci_text(card) if self.pci_text else text,
            "DEVICE_UUID": card.uuid_bytes.hex(),
        }[name]


def fake_sysfs(root: Path, cards: Sequence[Card], *, driver: str = "xe", monitor: str = "") -> Path:
    """Write display controllers of ``cards`` under ``root``/sys; monitor: address that has one."""
    for number, card in enumerate(cards):
        folder = root / "sys/bus/pci/devices" / card.pci
        folder.mkdir(parents=True)
        (folder / "vendor").write_text("0x8086\n")
        (folder / "device").write_text(f"{card.device_id:#06x}\n")
        (folder / "class").write_text("0x030000\n")
        if driver:
            target = root / "sys/bus/pci/drivers" / driver
            target.mkdir(parents=True, exist_ok=True)
            (folder / "driver").symlink_to(target)
        for connector, status in (("DP-1", card.pci == monitor), ("HDMI-A-1", False)):
            file = folder / f"drm/card{number}/card{number}-{connector}/status"
            file.parent.mkdir(parents=True)
            file.write_text("connected\n" if status else "disconnected\n")
    return root
