"""What a pool needs of the runtime that has the arrays: zero, copy, and look.

Tables are one array per kind of state and layer (convolution window, matrix), each with the
place as its first dimension. A place is the same number in all of them. Every array is allocated
when the tables are made and never again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from arcpp.link.frame import TensorSpec


class StateTables(ABC):
    """State of ``places`` places on one device.

    device: its name ("xpu:1"). arrays: what one place consists of, shapes without the place. What
    a place holds at first is not said: the pool does not read what it has not written.

    Calls take effect in the order they are made, and between steps that the caller submits to
    the device's current stream before and after them; they may return before the device is done.
    A runtime without such a stream (OpenVINO) says what the caller waits for instead.
    Places out of range raise IndexError before anything changes. What the runtime raises is
    passed on; places that were being written then hold anything, all others what they held.
    """

    device: str
    places: int
    arrays: tuple[TensorSpec, ...]

    @property
    def place_bytes(self) -> int:
        """Bytes of one place over all arrays."""
        return sum(array.nbytes for array in self.arrays)

    @abstractmethod
    def zero(self, places: Sequence[int]) -> None:
        """Make every element of ``places`` zero. Allocates no device memory."""

    @abstractmethod
    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy place to place, (from, to), bit by bit, one pair after the other.

        Allocates no device memory.
        """

    @abstractmethod
    def are_zero(self, places: Sequence[int]) -> bool:
        """Whether every bit of ``places`` is zero. Waits for the device."""

    @abstractmethod
    def read(self, place: int) -> bytes:
        """The bytes of a place, array after array, each in row order. Waits for the device."""

    @abstractmethod
    def write(self, place: int, raw: bytes) -> None:
        """Put bytes as read() gives them; for tests and diagnosis.

        Raises ValueError for more or fewer than ``place_bytes``.
        """

    def check(self, places: Sequence[int]) -> None:
        """Raises IndexError for a place that is not there; negative ones are not counted back."""
        for place in places:
            if not 0 <= place < self.places:
                raise IndexError(f"place {place} is not one of {self.places} on {self.device}")

    def split(self, raw: bytes) -> list[bytes]:
        """The bytes of a place by array. Raises ValueError for a wrong number of them."""
        if len(raw) != self.place_bytes:
            raise ValueError(f"{len(raw)} bytes for a place of {self.place_bytes}")
        parts, at = [], 0
        for array in self.arrays:
            parts.append(raw[at : at + array.nbytes])
            at += array.nbytes
        return parts
