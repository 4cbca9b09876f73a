"""Which requests are in the next step, and with which tokens, blocks and state.

Decoding requests first, then prompts that are begun, then new ones, oldest first. Where KV blocks
run out, the youngest request that is in no step gives its own back and is computed anew later. A
request is admitted only where all it may ever need exists, so that the oldest always gets on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from arcpp.state import Slot, SlotPool, Window

from .blocks import ROOT, BlockPool
from .prefix import Prefixes
from .request import Running


@dataclass(frozen=True)
class Limits:
    """max_sequences: requests that run at once. max_batch_tokens: of one step. microbatches: steps
    in flight at once; running requests are spread over them."""

    max_sequences: int
    max_batch_tokens: int
    microbatches: int = 1


@dataclass(frozen=True)
class Part:
    """One request's part of a step: its tokens [start, start + count). window: of its state.
    last: nothing of it is missing afterwards, so that the next token can be chosen."""

    running: Running
    start: int
    count: int
    window: Window | None
    last: bool


class Scheduler:
    """Requests from admission to release. One thread; numbers only, no device is touched except
    for copies of states that prefixes keep."""

    def __init__(
        self,
        blocks: BlockPool,
        limits: Limits,
        states: SlotPool | None,
        *,
        prefix_caching: bool = True,
    ) -> None:
        """states: None for models without recurrent state."""
        self.blocks, self.limits, self.states = blocks, limits, states
        self.prefix_caching = prefix_caching
        self.prefixes = Prefixes(blocks, states, enabled=prefix_caching)
        self.waiting: deque[Running] = deque()
        self.running: list[Running] = []  # oldest first
        self.preemptions = 0
        self._slots: dict[Running, Slot] = {}

    def add(self, running: Running) -> None:
        """One more that waits."""
        self.waiting.append(running)

    def everybody(self) -> Iterator[Running]:
        """All requests that are not finished."""
        yield from list(self.running)
        yield from list(self.waiting)

    def step(self, allowed: frozenset[str] | None = None) -> list[Part]:
        """The next step, perhaps empty. allowed: request ids that may run; None: all."""
        tokens = self.limits.max_batch_tokens
        seats = -(-self._active() // self.limits.microbatches)
        parts: list[Part] = []
        for running in self._order(allowed):
            if not tokens or len(parts) >= seats:
                break
            part = self._part(running, tokens)
            if part is not None:
                parts.append(part)
                tokens -= part.count
        while tokens and len(parts) < seats and self.waiting:
            part = self._admitted(tokens, allowed)
            if part is None:
                break
            parts.append(part)
            tokens -= part.count
        return parts

    def _active(self) -> int:
        return min(self.limits.max_sequences, len(self.running) + len(self.waiting))

    def _order(self, allowed: frozenset[str] | None) -> list[Running]:
        free = [
            one
            for one in self.running
            if not one.in_flight and (allowed is None or one.request_id in allowed)
        ]
        return sorted(free, key=lambda one: one.missing > 1)  # stable: oldest first in each

    def _part(self, running: Running, tokens: int) -> Part | None:
        if running not in self.running:  # preempted for the sake of an older one
            return None
        count = min(running.missing, tokens)
        count = self.prefixes.up_to_boundary(running, count)
        if not self._make_room(running, running.computed + count):
            return None
        return self._made(running, count)

    def _made(self, running: Running, count: int) -> Part:
        slot = self._slots.get(running)
        window = None if self.states is None or slot is None else self.states.step(slot)
        running.in_flight = True
        return Part(running, running.computed, count, window, count == running.missing)

    def _make_room(self, running: Running, tokens: int) -> bool:
        """Blocks for ``tokens`` of ``running``, at the expense of younger ones if need be."""
        missing = self.blocks.needed(tokens) - len(running.blocks)
        if missing <= 0:
            return True
        while self.blocks.available < missing:
            younger = [
                one for one in self.running if one.arrival > running.arrival and not one.in_flight
            ]
            if not younger:
                return False
            self.preempt(younger[-1])
        lent = self.blocks.lend(missing)
        assert lent is not None
        running.blocks += lent
        return True

    def _admitted(self, tokens: int, allowed: frozenset[str] | None) -> Part | None:
        """The first step of a request that waits, or None where none may begin now."""
        if len(self.running) >= self.limits.max_sequences:
            return None
        if self.states is not None and not self.states.available:
            return None
        running = next(
            (one for one in self.waiting if allowed is None or one.request_id in allowed), None
        )
        if running is None:
            return None
        found = self.prefixes.find(running)
        spare = 1 if self.running else 0  # else it would be preempted as soon as somebody grows
        needed = self.blocks.needed(len(running.tokens)) - len(found.blocks) + spare
        if self.blocks.available - found.idle < needed:
            return None
        self.waiting.remove(running)
        slot = self.prefixes.use(running, found)
        if slot is not None:
            self._slots[running] = slot
        self.running.append(running)
        self.running.sort(key=lambda one: one.arrival)
        count = self.prefixes.up_to_boundary(running, min(running.missing, tokens))
        room = self._make_room(running, running.computed + count)
        assert room
        return self._made(running, count)

    def done(self, part: Part) -> None:
        """The caches hold the part's tokens."""
        running = part.running
        running.in_flight = False
        running.computed = part.start + part.count
        size = self.blocks.size
        for index in range(len(running.contents), running.computed // size):
            before = running.contents[-1] if running.contents else ROOT
            tokens = tuple(running.tokens[index * size : (index + 1) * size])
            running.contents.append(self.blocks.note(running.blocks[index], before, tokens))
        self.prefixes.keep(running, self._slots.get(running))

    def preempt(self, running: Running) -> None:
        """``running`` gives everything back and waits, before those who never ran."""
        self._give_back(running)
        self.running.remove(running)
        self.preemptions += 1
        self._wait_again(running)

    def _wait_again(self, running: Running) -> None:
        place = sum(1 for one in self.waiting if one.arrival < running.arrival)
        self.waiting.insert(place, running)

    def finish(self, running: Running) -> None:
        """``running`` is over: it gives everything back."""
        if running in self.running:
            self._give_back(running)
            self.running.remove(running)
        else:
            self.waiting.remove(running)

    def _give_back(self, running: Running) -> None:
        self.blocks.release(running.blocks)
        running.blocks, running.contents = [], []
        running.computed, running.in_flight = 0, False
        slot = self._slots.pop(running, None)
        if slot is not None and self.states is not None:
            self.states.release(slot)

    def lost(self, states: SlotPool | None) -> None:
        """The tables hold nothing any more: everybody is computed anew. states: the new pool."""
        for running in list(self.running):
            self.blocks.release(running.blocks)
            running.blocks, running.contents = [], []
            running.computed, running.in_flight = 0, False
            self._wait_again(running)
        self.running.clear()
        self._slots.clear()
        self.blocks.forget_all()
        self.states, self.prefixes = (
            states,
            Prefixes(self.blocks, states, enabled=self.prefix_caching),
        )
