"""What goes wrong on a virtual device, and when: the same for one seed."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

_STEP_S = 0.001


class Wrong(Enum):
    """What a copy between device and host memory does.

    CORRUPTS: changes one byte, and says nothing. STALLS: never finishes. LATE: finishes after
    ``seconds``. VANISHES: the device is lost, from then on for everything.
    """

    CORRUPTS = "corrupts"
    STALLS = "stalls"
    LATE = "late"
    VANISHES = "vanishes"


@dataclass(frozen=True)
class NullFault:
    """One copy that goes wrong.

    hop: which, counted from 0 for each direction. out: whether it is the copy out of the device.
    where: of the byte, as a share [0, 1) of the hop. seconds: by which LATE is late.
    """

    wrong: Wrong
    hop: int = 0
    out: bool = True
    where: float = 0.5
    seconds: float = 0.05

    @staticmethod
    def by_seed(wrong: Wrong, seed: int, hops: int) -> NullFault:
        """Any copy of the first ``hops``, either way, any byte of it."""
        chosen = random.Random(seed)  # noqa: S311 (to be repeated, not to be secret)
        return NullFault(wrong, chosen.randrange(hops), chosen.random() < 0.5, chosen.random())


class NullDeviceLost(RuntimeError):
    """A virtual device is gone, as a runtime would say it."""


class FaultyDevice:
    """What is due to go wrong on one device."""

    def __init__(self, name: str, faults: Sequence[NullFault]) -> None:
        self.name, self._faults, self._lost = name, tuple(faults), False

    def use(self, hop: int, *, out: bool, deadline: float) -> None:
        """Before a copy of ``hop``. Raises NullDeviceLost, TimeoutError."""
        found = self._due(hop, out)
        if found is not None:
            if found.wrong is Wrong.STALLS:
                _sleep_until(deadline)
                raise TimeoutError
            if found.wrong is Wrong.LATE:
                _sleep_until(min(time.monotonic() + found.seconds, deadline))
            self._lost |= found.wrong is Wrong.VANISHES
        if self._lost:
            raise NullDeviceLost(f"{self.name} was lost")

    def wrong_byte(self, hop: int, nbytes: int, *, out: bool) -> int | None:
        """Which byte of the hop's ``nbytes`` the copy changes, None for none."""
        found = self._due(hop, out)
        if found is None or found.wrong is not Wrong.CORRUPTS or not nbytes:
            return None
        return int(found.where * nbytes)

    def _due(self, hop: int, out: bool) -> NullFault | None:
        return next((each for each in self._faults if (each.hop, each.out) == (hop, out)), None)


def _sleep_until(moment: float) -> None:
    while (left := moment - time.monotonic()) > 0:
        time.sleep(min(left, _STEP_S))
