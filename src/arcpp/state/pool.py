"""A fixed number of slots of recurrent state, lent to requests.

Why a slot reads as zero, also when it was used before: by default its first step reads place 0 of
the tables and writes its own. Place 0 is zeroed and read back when the pool is made, lies in no
ring and in no snapshot, and a Window's writes come from rings only, so that nothing that keeps to
its windows writes it; check_integrity() reads it again. No zeroing per request costs nothing, and
nothing can be forgotten. Backends that work in place zero explicitly: see Start.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from arcpp.errors import (
    DoubleRelease,
    ForeignSlot,
    SlotMisuse,
    StateCorrupt,
    UseAfterRelease,
)

from .handles import PoolSize, Slot, Snapshot, Start, Want, Window
from .ledger import Ledger
from .ring import Ring
from .tables import StateTables

#: The place that is never written.
ZERO_PLACE = 0


class SlotPool:
    """Slots over ``tables``, which belong to the pool. One thread at a time.

    Every call either does all it says or raises and changes nothing: not what is lent, and not
    what a place holds that a slot or snapshot reads. What the device raises is passed on.
    A step that failed on the device leaves its slot's state unknown: release it, and replay.

    Raises ValueError where the tables have fewer places than ``size`` needs, StateCorrupt where
    the zero place cannot be made zero.
    """

    def __init__(
        self, tables: StateTables, size: PoolSize, start: Start = Start.ZERO_PLACE
    ) -> None:
        if tables.places < size.places:
            raise ValueError(f"{size} needs {size.places} places, the tables have {tables.places}")
        self.tables, self.size, self.start = tables, size, start
        self._mark = object()
        self._slots = Ledger(
            "state slots", size.slots, "wait until a request ends, or raise --max-num-seqs"
        )
        self._snapshots = Ledger("state snapshots", size.snapshots, "drop one first")
        self._rings: dict[int, Ring] = {}
        tables.zero([ZERO_PLACE])
        if not tables.are_zero([ZERO_PLACE]):
            raise StateCorrupt((f"the zero place on {tables.device} does not become zero",))

    @property
    def available(self) -> int:
        """Slots that are free."""
        return self._slots.available

    @property
    def snapshots_available(self) -> int:
        """Snapshots there is room for."""
        return self._snapshots.available

    def acquire(self, owner: Hashable) -> Slot:
        """A slot that reads as zero.

        Raises StateExhausted (needed, available), SlotMisuse for an owner that has a slot.
        """
        return self.assign([Want(owner)])[0]

    def restore(self, snapshot: Snapshot, owner: Hashable) -> Slot:
        """A slot that reads as ``snapshot``, of which it has its own copy. Raises as acquire(),
        and UseAfterRelease or ForeignSlot for the snapshot."""
        return self.assign([Want(owner, snapshot)])[0]

    def assign(self, wants: Sequence[Want]) -> tuple[Slot, ...]:
        """A slot for each want, in order, or an error and nothing changed.

        Planned, then made ready in places that nobody reads, then committed without anything that
        can fail. Raises as acquire() and restore().
        """
        numbers = self._planned(wants)
        self._prepare(wants, numbers)
        return tuple(
            self._committed(want, number) for want, number in zip(wants, numbers, strict=True)
        )

    def release(self, slot: Slot) -> None:
        """The slot may be lent again. Raises DoubleRelease, ForeignSlot."""
        self._check(slot, self._slots, DoubleRelease)
        del self._rings[slot.number]
        self._slots.take_back(slot.number)

    def step(self, slot: Slot) -> Window:
        """Places for a step of any number of tokens that stay; its end is then the slot's state.

        One checkpoint may follow for the same run on the device: its tokens start where this
        window's last write ends. Raises UseAfterRelease, ForeignSlot, SlotMisuse while a
        checkpoint is open.
        """
        return self._ring(slot).step()

    def checkpoint(self, slot: Slot, drafts: int) -> Window:
        """Places for ``drafts`` tokens of which accept() says how many stay. Nothing is copied.

        The state that is read is not among the places written. Raises as step(), and SlotMisuse
        for more drafts than the pool was made for.
        """
        return self._ring(slot).checkpoint(drafts)

    def accept(self, slot: Slot, accepted: int) -> None:
        """Keep the first ``accepted`` tokens of the checkpoint, none or all of them too.

        Raises UseAfterRelease, ForeignSlot; SlotMisuse without a checkpoint and for more than
        were proposed.
        """
        self._ring(slot).accept(accepted)

    def reads(self, slot: Slot) -> int:
        """The place that holds the slot's state. Raises UseAfterRelease, ForeignSlot."""
        return self._ring(slot).read

    def snapshot(self, slot: Slot) -> Snapshot:
        """A copy of the slot's state. Raises StateExhausted when there is no room for one more,
        and as step()."""
        ring = self._ring(slot)
        ring.refuse_open()
        (number,) = self._snapshots.upcoming(1)
        self.tables.copy([(ring.read, self._snapshot_place(number))])
        generation = self._snapshots.lend(number, slot.owner)
        return Snapshot(slot.owner, number, generation, self._mark)

    def drop(self, snapshot: Snapshot) -> None:
        """The snapshot's place is free again. Raises DoubleRelease, ForeignSlot."""
        self._check(snapshot, self._snapshots, DoubleRelease)
        self._snapshots.take_back(snapshot.number)

    def check_integrity(self) -> None:
        """Raises StateCorrupt, with everything that is wrong. Waits for the device.

        Free and held are a partition of slots and of snapshots, the rings of held slots lie apart
        and read what they may, no owner has two slots, the zero place is zero.
        """
        found = [*self._slots.problems(), *self._snapshots.problems(), *self._ring_problems()]
        owners = list(self._slots.holders.values())
        found += [f"{owner!r} has two slots" for owner in set(owners) if owners.count(owner) > 1]
        if not self.tables.are_zero([ZERO_PLACE]):
            found.append(f"the zero place on {self.tables.device} is not zero any more")
        if found:
            raise StateCorrupt(tuple(found))

    def _planned(self, wants: Sequence[Want]) -> tuple[int, ...]:
        """The slots the wants will get. Changes nothing."""
        taken = set(self._slots.holders.values())
        for want in wants:
            if want.owner in taken:
                raise SlotMisuse(f"{want.owner!r} has a slot already", owner=want.owner)
            taken.add(want.owner)
            if want.snapshot is not None:
                self._check(want.snapshot, self._snapshots, UseAfterRelease)
        return self._slots.upcoming(len(wants))

    def _prepare(self, wants: Sequence[Want], numbers: Sequence[int]) -> None:
        """Whatever the device does for slots that nobody has yet."""
        fresh, copies = [], []
        for want, number in zip(wants, numbers, strict=True):
            if want.snapshot is not None:
                copies.append((self._snapshot_place(want.snapshot.number), self._first(number)))
            elif self.start is not Start.ZERO_PLACE:
                fresh.append(self._first(number))
        if fresh:
            self.tables.zero(fresh)
        if copies:
            self.tables.copy(copies)
        if fresh and self.start is Start.PROVEN and not self.tables.are_zero(fresh):
            raise StateCorrupt((f"places {fresh} on {self.tables.device} do not become zero",))

    def _committed(self, want: Want, number: int) -> Slot:
        generation = self._slots.lend(number, want.owner)
        first = self._first(number)
        fresh = want.snapshot is None and self.start is Start.ZERO_PLACE
        self._rings[number] = Ring(
            number,
            want.owner,
            first=first,
            size=self.size.ring,
            start=ZERO_PLACE if fresh else first,
        )
        return Slot(want.owner, number, generation, self._mark)

    def _first(self, number: int) -> int:
        return 1 + number * self.size.ring

    def _snapshot_place(self, number: int) -> int:
        return 1 + self.size.slots * self.size.ring + number

    def _ring(self, slot: Slot) -> Ring:
        self._check(slot, self._slots, UseAfterRelease)
        return self._rings[slot.number]

    def _check(self, handle: Slot | Snapshot, ledger: Ledger, late: type[SlotMisuse]) -> None:
        if handle.pool is not self._mark:
            raise ForeignSlot(
                f"{handle} is of another pool", owner=handle.owner, number=handle.number
            )
        if not ledger.is_current(handle.number, handle.generation):
            raise late(f"{handle} was given back already", owner=handle.owner, number=handle.number)

    def _ring_problems(self) -> list[str]:
        found = []
        beside = {ZERO_PLACE} if self.start is Start.ZERO_PLACE else set()
        if set(self._rings) != set(self._slots.holders):
            found.append(f"rings {sorted(self._rings)} are not those of the slots held")
        for number, ring in self._rings.items():
            own = range(self._first(number), self._first(number) + self.size.ring)
            if ring.places != own:
                found.append(f"slot {number} writes {ring.places}, not {own}")
            if ring.read not in own and ring.read not in beside:
                found.append(f"slot {number} reads place {ring.read}, which is not its own")
        return found
