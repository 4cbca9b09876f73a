"""Device memory of another process, through the CUDA driver's interprocess handles.

Memory is taken from the driver itself rather than from torch's allocator: a handle always means a
whole allocation. It is kept for the next link and freed with the process, because the other
process may still be reading it. torch sees it through the CUDA array interface.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch

HANDLE_BYTES = 64
_PEER_ACCESS = 1  # CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
_DRIVER = "libcuda.so.1"


class IpcError(RuntimeError):
    """The driver refused. The text names the call and its status."""


class _Handle(ctypes.Structure):
    _fields_ = [("reserved", ctypes.c_char * HANDLE_BYTES)]


class _Bytes:
    """Memory at an address, as the CUDA array interface tells it."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (nbytes,), "typestr": "|u1", "data": (address, False), "version": 3,
        }  # fmt: skip


class CudaIpc:
    """Exported and imported memory of one device. driver: the library, or a fake of it."""

    def __init__(self, place: torch.device, driver: Any = None) -> None:
        self._place = place
        try:
            self._driver = driver or ctypes.CDLL(_DRIVER)
        except OSError as error:
            raise IpcError(str(error)) from None

    def export(self, nbytes: int) -> tuple[bytes, torch.Tensor]:
        """A handle for new memory of ``nbytes`` on this device, and the memory. Raises IpcError."""
        with torch.cuda.device(self._place):
            torch.cuda.current_stream().synchronize()  # makes the context
            address, handle = ctypes.c_uint64(), _Handle()
            self._ask("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(nbytes))
            self._ask("cuIpcGetMemHandle", ctypes.byref(handle), address)
            return bytes(handle), self._seen(address.value, nbytes)

    def open(self, handle: bytes, nbytes: int) -> torch.Tensor:
        """Memory that another process exported. Raises IpcError."""
        with torch.cuda.device(self._place):
            torch.cuda.current_stream().synchronize()
            address = ctypes.c_uint64()
            given = _Handle.from_buffer_copy(handle)
            flags = ctypes.c_uint(_PEER_ACCESS)
            self._ask("cuIpcOpenMemHandle_v2", ctypes.byref(address), given, flags)
            return self._seen(address.value, nbytes)

    def _seen(self, address: int, nbytes: int) -> torch.Tensor:
        seen: torch.Tensor = torch.as_tensor(_Bytes(address, nbytes), device=None)
        return seen

    def _ask(self, call: str, *arguments: Any) -> None:
        status = getattr(self._driver, call)(*arguments)
        if status:
            raise IpcError(f"{call} failed with {status}")
