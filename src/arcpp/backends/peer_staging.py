"""A ring whose payload lies in the sending card's memory, which the receiving card reads itself.

Headers, control words and checksums stay in shared memory. Only on request, and only after a
content check: peer access was reported present and corrupt (compute-runtime#942).
"""

from __future__ import annotations

import mmap

import torch

from arcpp.link import LinkEnd, RingOptions

from .cuda_ipc import HANDLE_BYTES, CudaIpc, IpcError
from .link_check import carry
from .pinning import PAGEABLE, Pinning
from .torch_stream_staging import StreamStaging

_SAID_BYTES = 512
_EXPORTED: dict[tuple[torch.device, int], list[tuple[bytes, torch.Tensor]]] = {}
_OPENED: dict[bytes, torch.Tensor] = {}


class PeerRefused(Exception):
    """Cards cannot copy from each other's memory here. The text says why; both ends raise it."""


class PeerStaging(StreamStaging):
    """As StreamStaging, with the payload in ``there``, memory of the sending card."""

    def __init__(self, place: torch.device, handle: bytes, there: torch.Tensor) -> None:
        super().__init__(place, lambda _address, _nbytes, _place: Pinning(PAGEABLE, _nothing))
        self._handle, self._there = handle, there

    def attach(self, memory: mmap.mmap) -> None:
        """As in the port."""
        super().attach(memory)
        self.payload, self.pinning = self._there, "peer"

    def detach(self) -> None:
        """As in the port; the card's memory is kept for the next link, see cuda_ipc."""
        if self._map is not None and self._handle not in _OPENED:
            key = (self.place, self._there.numel())
            _EXPORTED.setdefault(key, []).append((self._handle, self._there))
        super().detach()


def peer_staging_for(end: LinkEnd, options: RingOptions) -> PeerStaging:
    """This end's staging, with memory that both ends know. Raises PeerRefused at both ends."""
    nbytes, place = options.shape.nbytes, torch.device(end.device)
    said, why = b"", ""
    if end.sends:
        try:
            said, there = _export(place, nbytes)
        except IpcError as error:
            why = str(error)
        _tell(end, why or said.hex(), to_sender=False)
    else:
        heard = _tell(end, "", to_sender=False)
        try:
            said, there = _open(place, heard, nbytes)
        except IpcError as error:
            why = str(error)
    why = _tell(end, why, to_sender=True) or why
    if why:
        raise PeerRefused(why)
    return PeerStaging(there.device if end.sends else place, said, there)


def _export(place: torch.device, nbytes: int) -> tuple[bytes, torch.Tensor]:
    _check_kind(place)
    kept = _EXPORTED.get((place, nbytes))
    return kept.pop() if kept else CudaIpc(place).export(nbytes)


def _open(place: torch.device, heard: str, nbytes: int) -> tuple[bytes, torch.Tensor]:
    _check_kind(place)
    try:
        handle = bytes.fromhex(heard)
    except ValueError:
        raise IpcError(heard) from None
    if len(handle) != HANDLE_BYTES:
        raise IpcError(heard or "the other end exported nothing")
    if handle not in _OPENED:
        _OPENED[handle] = CudaIpc(place).open(handle, nbytes)
    return handle, _OPENED[handle]


def _check_kind(place: torch.device) -> None:
    if place.type != "cuda":
        raise IpcError(f"torch shares no device memory between processes on {place.type}")


def _tell(end: LinkEnd, text: str, *, to_sender: bool) -> str:
    """``text`` of the end that speaks, at both ends."""
    said = torch.zeros(_SAID_BYTES, dtype=torch.uint8)
    raw = text.encode()[:_SAID_BYTES]
    said[: len(raw)] = torch.frombuffer(bytearray(raw), dtype=torch.uint8) if raw else said[:0]
    carry(end, said, to_sender=to_sender)
    return said.numpy().tobytes().rstrip(b"\0").decode(errors="replace")


def _nothing() -> None:
    """Nothing was pinned."""
