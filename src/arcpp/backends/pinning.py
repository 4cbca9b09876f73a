"""Making a ring's pages known to a device's runtime, so that its copies run at the pinned rate.

cuda: cudaHostRegister. xpu: torch has no such call; Level Zero can import existing pages where its
driver has the extension (zexDriverImportExternalPointer). Without it copies go through a pinned
bounce buffer, and without that they are pageable: slower, and just as safe, because every copy is
waited for. Not run on an Intel GPU.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

REGISTERED, IMPORTED, BOUNCE, PAGEABLE = "registered", "imported", "bounce", "pageable"
_LOADER = "libze_loader.so.1"


@dataclass(frozen=True)
class Pinning:
    """How pages are pinned. release: undoes it. why: what a better way failed with, or None."""

    kind: str
    release: Callable[[], object]
    why: str | None = None


def pin(address: int, nbytes: int, place: torch.device) -> Pinning:
    """Pin ``nbytes`` at ``address`` for copies to and from ``place``. Never raises."""
    try:
        if place.type == "cuda":
            return _register(torch.cuda.cudart(), address, nbytes)  # type: ignore[no-untyped-call]
        if place.type == "xpu":
            return _import(_level_zero(), address, nbytes)
        why = f"no way to pin pages for {place.type}"
    except Exception as error:
        why = " ".join(str(error).split())[:200] or type(error).__name__
    try:
        torch.empty(1, pin_memory=True)
    except Exception:
        return Pinning(PAGEABLE, _nothing, why)
    return Pinning(BOUNCE, _nothing, why)


def _nothing() -> None:
    """Nothing to undo."""


def _register(runtime: Any, address: int, nbytes: int) -> Pinning:
    status = int(runtime.cudaHostRegister(address, nbytes, 0))
    if status:
        raise RuntimeError(f"cudaHostRegister of {nbytes} bytes failed with {status}")
    return Pinning(REGISTERED, lambda: runtime.cudaHostUnregister(address))


class LevelZeroImport:
    """The import extension of the first Level Zero GPU driver in this process.

    loader: the library, or a fake of it. Raises RuntimeError where the driver has none.
    """

    def __init__(self, loader: Any) -> None:
        _succeed("zeInit", loader.zeInit(0))
        count = ctypes.c_uint32(1)
        self.driver = ctypes.c_void_p()
        _succeed("zeDriverGet", loader.zeDriverGet(ctypes.byref(count), ctypes.byref(self.driver)))
        if not count.value:
            raise RuntimeError("Level Zero has no driver")
        self._loader = loader
        pages = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
        release = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
        self._import = pages(self._address("zexDriverImportExternalPointer"))
        self._release = release(self._address("zexDriverReleaseImportedPointer"))

    def _address(self, name: str) -> int:
        found = ctypes.c_void_p()
        status = self._loader.zeDriverGetExtensionFunctionAddress(
            self.driver, name.encode(), ctypes.byref(found)
        )
        if status or not found.value:
            raise RuntimeError(f"the Level Zero driver has no {name}")
        return found.value

    def take(self, address: int, nbytes: int) -> None:
        """Import pages. Raises RuntimeError."""
        _succeed("zexDriverImportExternalPointer", self._import(self.driver.value, address, nbytes))

    def give_back(self, address: int) -> None:
        """Undo take()."""
        self._release(self.driver.value, address)


@functools.cache
def _level_zero() -> LevelZeroImport:
    return LevelZeroImport(ctypes.CDLL(_LOADER))


def _import(level_zero: LevelZeroImport, address: int, nbytes: int) -> Pinning:
    level_zero.take(address, nbytes)
    return Pinning(IMPORTED, lambda: level_zero.give_back(address))


def _succeed(call: str, status: int) -> None:
    if status:
        raise RuntimeError(f"{call} failed with {status & 0xFFFFFFFF:#x}")
