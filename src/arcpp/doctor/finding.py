"""A finding, and what every subject of advice starts from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from arcpp.probe import XPU, Sighting

from .facts import Facts

BROKEN, ADVICE, UNCHECKED, OK = "broken", "advice", "not checked", "ok"
#: What to do where a runtime is not here.
ELSEWHERE = "run doctor where the server runs"

#: What a subject yields: level, what was found, what to do about it.
Found = Iterator[tuple[str, str, str]]


@dataclass(frozen=True)
class Finding:
    """level: BROKEN, ADVICE, UNCHECKED (what it would be looked at with is not here) or OK. says:
    what was found. do: what to do about it ("" for OK, and where there is nothing to do)."""

    level: str
    subject: str
    says: str
    do: str = ""

    def to_json(self) -> dict[str, str]:
        """Fields by name."""
        return {"level": self.level, "subject": self.subject, "says": self.says, "do": self.do}


def discrete(facts: Facts) -> list[Sighting]:
    """Intel cards on the bus, without integrated GPUs."""
    return [card for card in facts.cards if card.kind == XPU and not card.integrated]
