"""Beginnings of prompts that need not be computed again.

KV blocks of a prefix can be shared as they are. Recurrent state is one value per request, so that
in hybrid models a prefix is only of use where a copy of the state behind it was kept: at the last
full block of a prompt.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from arcpp.state import Slot, SlotPool, Snapshot

from .blocks import BlockPool
from .request import Running


@dataclass(frozen=True)
class Found:
    """blocks: shared ones, with their contents; idle: how many of them nobody uses now.
    snapshot: the state behind the last of them, in hybrid models."""

    blocks: tuple[int, ...] = ()
    contents: tuple[int, ...] = ()
    idle: int = 0
    snapshot: Snapshot | None = None


class Prefixes:
    """What of ``blocks`` can be used again, with copies of state in ``states``: a pool without
    room for them (``PoolSize.snapshots``) has no prefixes."""

    def __init__(self, blocks: BlockPool, states: SlotPool | None, *, enabled: bool) -> None:
        self._blocks, self._states = blocks, states
        self._kept: OrderedDict[int, Snapshot] = OrderedDict()  # content -> state behind it
        self.keeps_states = enabled and states is not None and states.size.snapshots > 0
        self.enabled = enabled and (states is None or self.keeps_states)

    def find(self, running: Running) -> Found:
        """The longest usable prefix, short of the last token, whose logits are wanted."""
        if not self.enabled:
            return Found()
        found = self._blocks.match(running.tokens[:-1])
        if self._states is not None:
            while found and found[-1][1] not in self._kept:
                found.pop()
        if not found:
            return Found()
        blocks, contents = zip(*found, strict=True)
        snapshot = self._kept.get(contents[-1])
        return Found(blocks, contents, self._blocks.idle_among(blocks), snapshot)

    def use(self, running: Running, found: Found) -> Slot | None:
        """``running`` starts behind ``found``. Returns its slot, in hybrid models."""
        self._blocks.share(found.blocks)
        running.blocks, running.contents = list(found.blocks), list(found.contents)
        running.computed = len(found.blocks) * self._blocks.size
        if not running.output:
            running.cached_tokens = running.computed
        if self._states is None:
            return None
        if found.snapshot is None:
            return self._states.acquire(running)
        self._kept.move_to_end(found.contents[-1])
        return self._states.restore(found.snapshot, running)

    def up_to_boundary(self, running: Running, count: int) -> int:
        """``count`` tokens, or fewer so that the step ends where a state is to be kept."""
        if not self.keeps_states:
            return count
        left = self._boundary(running) - running.computed
        return min(count, left) if left > 0 else count

    def keep(self, running: Running, slot: Slot | None) -> None:
        """Keep the state behind what is computed, where it is of use."""
        if not self.keeps_states or slot is None or running.computed != self._boundary(running):
            return
        assert self._states is not None
        content = running.contents[-1]
        if content in self._kept:
            self._kept.move_to_end(content)
            return
        if not self._states.snapshots_available:
            self._states.drop(self._kept.popitem(last=False)[1])
        self._kept[content] = self._states.snapshot(slot)

    def _boundary(self, running: Running) -> int:
        """Tokens of the full blocks of the prompt, short of its last token."""
        size = self._blocks.size
        return (running.prompt_tokens - 1) // size * size or -1
