"""Where one slot reads and writes: k + 1 places in a circle, and a pointer to its state.

Draft tokens write the places after the pointer, each its own. Accepting some of them moves the
pointer; what lies beyond is forgotten where it is, and never read again before it is written.
Nothing is copied.
"""

from __future__ import annotations

from collections.abc import Hashable

from arcpp.errors import SlotMisuse

from .handles import Window


class Ring:
    """Places [first, first + size) of slot ``number``, lent to ``owner``.

    start: the place its first step reads, its own first or the zero place.
    """

    def __init__(self, number: int, owner: Hashable, *, first: int, size: int, start: int) -> None:
        self.number, self.owner = number, owner
        self.first, self.size, self.read = first, size, start
        self._at = 0
        self._proposed: int | None = None

    @property
    def places(self) -> range:
        """All that it may write."""
        return range(self.first, self.first + self.size)

    def step(self) -> Window:
        """One step whose tokens stay: reads the state, and puts the new one into the slot.

        In place, except for the first step of a slot that starts at the zero place.
        """
        self.refuse_open()
        read, self.read = self.read, self._place(0)
        return Window(read, (self.read,))

    def checkpoint(self, drafts: int) -> Window:
        """Places for ``drafts`` tokens that may be taken back; the state itself stays.

        Raises SlotMisuse for more than the ring is for.
        """
        self.refuse_open()
        if not 0 <= drafts < self.size:
            raise self._misuse(
                f"was made for {self.size - 1} draft tokens, not {drafts}: plan for as many "
                "(--spec-tokens)"
            )
        self._proposed = drafts
        return Window(self.read, tuple(self._place(ahead) for ahead in range(1, drafts + 1)))

    def accept(self, accepted: int) -> None:
        """Keep the first ``accepted`` draft tokens, forget the rest. Raises SlotMisuse."""
        if self._proposed is None:
            raise self._misuse("proposed nothing that could be accepted: call checkpoint first")
        if not 0 <= accepted <= self._proposed:
            raise self._misuse(f"proposed {self._proposed} draft tokens, of which {accepted} cannot"
                               " be accepted")  # fmt: skip
        if accepted:
            self._at = (self._at + accepted) % self.size
            self.read = self._place(0)
        self._proposed = None

    def refuse_open(self) -> None:
        """Raise SlotMisuse while draft tokens wait to be accepted."""
        if self._proposed is not None:
            raise self._misuse("has draft tokens that wait: call accept first")

    def _place(self, ahead: int) -> int:
        return self.first + (self._at + ahead) % self.size

    def _misuse(self, problem: str) -> SlotMisuse:
        message = f"slot {self.number} of {self.owner!r} {problem}"
        return SlotMisuse(message, owner=self.owner, number=self.number)
