"""Values that go in and out of a pool of state."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import Enum


@dataclass(frozen=True)
class PoolSize:
    """How much a pool holds, fixed for its life.

    slots: requests that have state at once. drafts: most draft tokens that one request proposes
    in a step (k); each is one more place per slot. snapshots: states kept beside those of running
    requests, for prefixes. Raises ValueError for what cannot be.
    """

    slots: int
    drafts: int = 0
    snapshots: int = 0

    def __post_init__(self) -> None:
        if self.slots < 1 or self.drafts < 0 or self.snapshots < 0:
            raise ValueError(f"{self} cannot be: one slot at least, nothing negative")

    @property
    def ring(self) -> int:
        """Places of one slot: the state, and one for each draft token."""
        return self.drafts + 1

    @property
    def places(self) -> int:
        """Places the tables must have: the zero place, all rings, all snapshots."""
        return 1 + self.slots * self.ring + self.snapshots


class Start(Enum):
    """How a slot that was just acquired comes to read as zero.

    ZERO_PLACE: its first step reads the pool's permanent zero place and writes its own. Nothing
    is written when it is acquired, so it costs nothing and cannot fail; for backends whose step
    takes a place to read and a place to write (OpenVINO's paged form, kernels with two indices).
    ZEROED: its first place is zeroed, in stream order; for backends that only work in place.
    PROVEN: zeroed and read back before it is handed out, which waits for the device.
    """

    ZERO_PLACE = "zero place"
    ZEROED = "zeroed"
    PROVEN = "proven"


@dataclass(frozen=True)
class Slot:
    """One request's place in a pool, until it is released.

    owner: whose, as the caller names it. number: which slot. generation: how often that slot had
    been lent when this one was, so that a handle kept too long is known. pool: the mark of the
    pool it belongs to.
    """

    owner: Hashable
    number: int
    generation: int
    pool: object = field(repr=False)


@dataclass(frozen=True)
class Snapshot:
    """A copy of one slot's state, until it is dropped. owner: whose it was; the rest as in Slot."""

    owner: Hashable
    number: int
    generation: int
    pool: object = field(repr=False)


@dataclass(frozen=True)
class Want:
    """One slot of several that are assigned at once. snapshot: where it starts; None for zero."""

    owner: Hashable
    snapshot: Snapshot | None = None


@dataclass(frozen=True)
class Window:
    """Places of one slot for one step.

    read: where the step starts; it may be the zero place and is then never written. writes: where
    the state goes after each token, in order.
    """

    read: int
    writes: tuple[int, ...]
