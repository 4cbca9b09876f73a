"""What of a fixed number of things is lent, to whom, and how often it was."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from arcpp.errors import StateExhausted


class Ledger:
    """Numbers [0, count), each free or held by one owner.

    what: their name in messages ("state slots"). remedy: what to do when there are none.
    """

    def __init__(self, what: str, count: int, remedy: str) -> None:
        self.what, self.count, self.remedy = what, count, remedy
        # The last given back is the next lent: it is the warmest, and reuse is never put off.
        self._free = list(range(count - 1, -1, -1))
        self._holders: dict[int, Hashable] = {}
        self._generations = [0] * count

    @property
    def available(self) -> int:
        """How many are free."""
        return len(self._free)

    @property
    def holders(self) -> Mapping[int, Hashable]:
        """Number -> owner of what is lent."""
        return self._holders

    def upcoming(self, needed: int) -> tuple[int, ...]:
        """The next ``needed`` numbers, in the order they will be lent. Changes nothing.

        Raises StateExhausted when there are not as many.
        """
        if needed > self.available:
            raise StateExhausted(self.what, needed, self.available, self.count, self.remedy)
        return tuple(self._free[-1 : -1 - needed : -1])

    def lend(self, number: int, owner: Hashable) -> int:
        """Let ``owner`` have a number that is free; its generation from now on."""
        self._free.remove(number)
        self._holders[number] = owner
        self._generations[number] += 1
        return self._generations[number]

    def take_back(self, number: int) -> None:
        """A number that is lent is free again."""
        del self._holders[number]
        self._free.append(number)

    def is_current(self, number: int, generation: int) -> bool:
        """Whether a number is lent, and has not been lent to anybody since ``generation``."""
        return number in self._holders and self._generations[number] == generation

    def problems(self) -> list[str]:
        """Where free and held are not a partition of the numbers; empty when all is well."""
        found = []
        lying = sorted([*self._free, *self._holders])
        if lying != list(range(self.count)):
            found.append(
                f"{self.what}: free {sorted(self._free)} and held {sorted(self._holders)} "
                f"are not each of {self.count} once"
            )
        if any(self._generations[number] < 1 for number in self._holders):
            found.append(f"{self.what}: one is held that was never lent")
        return found
