"""A pool beside an oracle: every request's tokens in a dict, and what its state must be.

The state of a request is a hash of its tokens, as long as a place, made step by step from what
the pool says to read: whoever reads a dirty place, a neighbour's or a draft that was taken back
gets other bytes at once.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Hashable, Sequence

from arcpp.errors import SlotMisuse, StateExhausted
from arcpp.link.frame import TensorSpec
from arcpp.state import PoolSize, Slot, SlotPool, Snapshot, Start, StateTables, Want, Window

from .watch import check

#: Makes tables of these arrays with as many places.
MakeTables = Callable[[Sequence[TensorSpec], int], StateTables]
#: A small place: a convolution window of 16 bits and a matrix of 32, as most models have.
ARRAYS = (TensorSpec("conv", "bfloat16", (3, 5)), TensorSpec("ssm", "float32", (2, 3, 4)))


def after_token(state: bytes, token: int) -> bytes:
    """The state after one more token."""
    return hashlib.shake_128(state + token.to_bytes(8, "big")).digest(len(state))


class OraclePool:
    """A pool under test. Methods do to it and to the oracle alike, and compare.

    AssertionError says what differs.
    """

    def __init__(self, make: MakeTables, size: PoolSize, start: Start = Start.ZERO_PLACE) -> None:
        self.tables = make(ARRAYS, size.places)
        for place in range(size.places):  # whatever was there before
            self.tables.write(place, bytes([0xA5]) * self.tables.place_bytes)
        self.size, self.pool = size, SlotPool(self.tables, size, start)
        #: What the state of each owner must be, and of each snapshot.
        self.states: dict[Hashable, bytes] = {}
        self.slots: dict[Hashable, Slot] = {}
        self.kept: dict[Snapshot, bytes] = {}
        self.served = 0  # requests that got a slot

    @property
    def room(self) -> int:
        """Slots that must be free."""
        return self.size.slots - len(self.slots)

    def assign(self, wants: Sequence[Want]) -> None:
        """Slots for new owners, or a refusal where the oracle has no room for them."""
        try:
            slots = self.pool.assign(wants)
        except StateExhausted as error:
            check(len(wants) > self.room, f"refused {len(wants)} with room for {self.room}")
            fields = (error.needed, error.available)
            check(fields == (len(wants), self.room), f"the refusal says {fields}")
            return
        check(len(wants) <= self.room, f"{len(wants)} slots were given out of {self.room}")
        for want, slot in zip(wants, slots, strict=True):
            check(slot.owner == want.owner, f"{slot} for {want.owner!r}")
            zero = bytes(self.tables.place_bytes)
            self.states[want.owner] = zero if want.snapshot is None else self.kept[want.snapshot]
            self.slots[want.owner], self.served = slot, self.served + 1
            self.compare(want.owner)

    def step(self, owner: Hashable, tokens: Sequence[int]) -> None:
        """A step of tokens that stay."""
        window = self.pool.step(self.slots[owner])
        check(len(window.writes) == 1, f"{window} for a step")
        state = self._read(owner, window)
        for token in tokens:
            state = after_token(state, token)
        self.tables.write(window.writes[0], state)
        self.states[owner] = state
        self.compare(owner)

    def speculate(self, owner: Hashable, drafts: Sequence[int], accepted: int) -> None:
        """Draft tokens of which the first ``accepted`` stay."""
        before = [self.states[owner]]
        window = self.pool.checkpoint(self.slots[owner], len(drafts))
        state = self._read(owner, window)
        check(len(set(window.writes) - {window.read}) == len(drafts), f"{window} overwrites itself")
        for token, place in zip(drafts, window.writes, strict=True):
            state = after_token(state, token)
            before.append(state)
            self.tables.write(place, state)
        self.pool.accept(self.slots[owner], accepted)
        self.states[owner] = before[accepted]
        self.compare(owner)

    def release(self, owner: Hashable) -> None:
        """Give a slot back; its handle is dead from then on."""
        slot = self.slots.pop(owner)
        del self.states[owner]
        self.pool.release(slot)
        for use in (self.pool.release, self.pool.step, self.pool.snapshot, self.pool.reads):
            try:
                use(slot)
            except SlotMisuse:
                continue
            raise AssertionError(f"{use.__name__} of {slot} after its release")

    def snapshot(self, owner: Hashable) -> None:
        """Keep a copy of a state, or be refused where the oracle has no room for it."""
        room = self.size.snapshots - len(self.kept)
        try:
            kept = self.pool.snapshot(self.slots[owner])
        except StateExhausted as error:
            check((error.needed, error.available, room) == (1, 0, 0), f"refused with room {room}")
            return
        check(room > 0, f"{kept} was made without room")
        self.kept[kept] = self.states[owner]

    def drop(self, snapshot: Snapshot) -> None:
        """Give a snapshot back."""
        del self.kept[snapshot]
        self.pool.drop(snapshot)

    def compare(self, owner: Hashable) -> None:
        """The state of one owner."""
        found = self.tables.read(self.pool.reads(self.slots[owner]))
        check(found == self.states[owner], f"{owner!r} reads a state that is not its own")

    def compare_all(self) -> None:
        """Every state, every snapshot by restoring it where there is room, and the books."""
        for owner in self.slots:
            self.compare(owner)
        if self.room:
            for snapshot in self.kept:
                self.assign([Want("restored", snapshot)])
                self.release("restored")
        self.pool.check_integrity()
        check(self.pool.available == self.room, f"{self.pool.available} free, not {self.room}")

    def _read(self, owner: Hashable, window: Window) -> bytes:
        raw = self.tables.read(window.read)
        check(raw == self.states[owner], f"{owner!r} starts from a state that is not its own")
        return raw


def run_requests(
    make: MakeTables, seed: int, requests: int, size: PoolSize, start: Start = Start.ZERO_PLACE
) -> OraclePool:
    """``requests`` requests or a few more through a pool, in an order that ``seed`` says.

    They come alone and several at once, prefill, decode, speculate, are snapshot, restored and
    released at any time; often there are more than fit.
    """
    chosen, both, asked = random.Random(seed), OraclePool(make, size, start), 0  # noqa: S311
    while both.served < requests or both.slots:
        owners, what = list(both.slots), chosen.random()
        if not owners or (both.served < requests and what < 0.3):
            count = chosen.choice((1, 1, 3)) if size.slots >= 3 else 1
            both.assign([_want(both, chosen, asked + index) for index in range(count)])
            asked += count
            continue
        owner = chosen.choice(owners)
        if what < 0.5:
            both.step(owner, [chosen.randrange(999) for _ in range(chosen.choice((1, 1, 7)))])
        elif what < 0.7:
            drafts = [chosen.randrange(999) for _ in range(chosen.randint(0, size.drafts))]
            both.speculate(owner, drafts, chosen.randint(0, len(drafts)))
        elif what < 0.75:
            both.snapshot(owner)
        elif what < 0.78 and both.kept:
            both.drop(chosen.choice(list(both.kept)))
        else:
            both.release(owner)
        if chosen.random() < 0.02:
            both.compare_all()
    both.compare_all()
    return both


def _want(both: OraclePool, chosen: random.Random, owner: int) -> Want:
    if both.kept and chosen.random() < 0.3:
        return Want(owner, chosen.choice(list(both.kept)))
    return Want(owner)
