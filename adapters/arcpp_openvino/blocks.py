"""KV blocks: lent, shared by prefixes, given back. Numbers only; the tables are the chain's.

A full block whose tokens, and all before them, equal another request's may be shared: its *content*
is known by the content before it and its own tokens, exactly, without hashes that might collide.
Blocks nobody uses any more keep their content until they are needed, the longest unused first.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence

#: What lies before the first block.
ROOT = 0


class BlockPool:
    """``count`` blocks of ``size`` tokens. One thread at a time.

    Every call does all it says, or returns None or raises and changes nothing.
    """

    def __init__(self, count: int, size: int) -> None:
        self.count, self.size = count, size
        self._free = list(range(count - 1, -1, -1))
        self._users = [0] * count
        self._content: list[int | None] = [None] * count
        self._known: dict[tuple[int, tuple[int, ...]], int] = {}  # -> content
        self._key: dict[int, tuple[int, tuple[int, ...]]] = {}  # content -> its key
        self._block_of: dict[int, int] = {}  # content -> block
        self._idle: OrderedDict[int, None] = OrderedDict()  # blocks nobody uses, with content
        self._next = ROOT + 1

    @property
    def available(self) -> int:
        """Blocks that can be lent now."""
        return len(self._free) + len(self._idle)

    def needed(self, tokens: int) -> int:
        """Blocks that hold ``tokens``."""
        return -(-tokens // self.size)

    def lend(self, count: int) -> list[int] | None:
        """``count`` blocks without content, or None when there are not as many."""
        if count > self.available:
            return None
        return [self._one() for _ in range(count)]

    def _one(self) -> int:
        if self._free:
            block = self._free.pop()
        else:
            block, _ = self._idle.popitem(last=False)
            self._forget(block)
        self._users[block] = 1
        return block

    def idle_among(self, blocks: Sequence[int]) -> int:
        """How many of ``blocks`` nobody uses: sharing them takes as many from ``available``."""
        return sum(1 for block in blocks if block in self._idle)

    def share(self, blocks: Sequence[int]) -> None:
        """One more user of each of ``blocks``, which have content."""
        for block in blocks:
            assert self._content[block] is not None
            self._idle.pop(block, None)
            self._users[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """One user less of each. Raises ValueError for a block with fewer users than that."""
        if any(self._users[block] < times for block, times in Counter(blocks).items()):
            raise ValueError(f"blocks {list(blocks)} are not all in use")
        for block in reversed(blocks):  # the end of a prefix goes before its beginning
            self._users[block] -= 1
            if self._users[block]:
                continue
            if self._content[block] is None:
                self._free.append(block)
            else:
                self._idle[block] = None

    def note(self, block: int, before: int, tokens: tuple[int, ...]) -> int:
        """``block`` holds ``tokens`` after the content ``before``. Returns the content, which
        another block may have too: then this one stays without."""
        assert len(tokens) == self.size
        known = self._known.get((before, tokens))
        if known is not None:
            return known
        content, self._next = self._next, self._next + 1
        key = (before, tokens)
        self._known[key], self._key[content] = content, key
        self._content[block], self._block_of[content] = content, block
        return content

    def match(self, tokens: Sequence[int]) -> list[tuple[int, int]]:
        """(block, content) of the longest run of full blocks at the beginning of ``tokens``."""
        found, before = [], ROOT
        for start in range(0, len(tokens) - self.size + 1, self.size):
            content = self._known.get((before, tuple(tokens[start : start + self.size])))
            if content is None:
                break
            found.append((self._block_of[content], content))
            before = content
        return found

    def forget_all(self) -> None:
        """No block has content any more: what the tables held is gone."""
        for block in list(self._idle):
            self._forget(block)
            self._free.append(block)
        self._idle.clear()
        for block, content in enumerate(self._content):
            if content is not None:
                self._forget(block)

    def _forget(self, block: int) -> None:
        content = self._content[block]
        assert content is not None
        self._content[block] = None
        del self._known[self._key.pop(content)], self._block_of[content]

    def check_integrity(self) -> None:
        """Raises ValueError where free, idle and used blocks are no partition."""
        used = {block for block, users in enumerate(self._users) if users}
        together = [*self._free, *self._idle, *used]
        if sorted(together) != list(range(self.count)):
            raise ValueError(
                f"free {self._free}, idle {list(self._idle)} and used {sorted(used)} blocks are "
                f"not {self.count} different ones"
            )
