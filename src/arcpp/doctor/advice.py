"""Facts -> findings: what is wrong, and what to do about it. Pure."""

from __future__ import annotations

from collections.abc import Callable

from . import hardware, links, software
from .facts import Facts
from .finding import ADVICE, BROKEN, OK, UNCHECKED, Finding, Found

_SUBJECTS: dict[str, Callable[[Facts], Found]] = {
    "cards": hardware.cards,
    "drivers": hardware.drivers,
    "torch": software.torch,
    "sources": software.sources,
    "memory": hardware.memory,
    "hosts": software.hosts,
    "plugin": software.plugin,
    "limits": software.limits,
    "links": links.links,
    "copies": links.copies,
}


def advise(facts: Facts) -> list[Finding]:
    """Findings on every subject, the broken first; a subject without fault has one OK, unless it
    could not be looked at."""
    found: list[Finding] = []
    for subject, look in _SUBJECTS.items():
        seen = [Finding(level, subject, says, do) for level, says, do in look(facts)]
        found += seen or [Finding(OK, subject, "nothing wrong found")]
    order = {BROKEN: 0, ADVICE: 1, UNCHECKED: 2, OK: 3}
    return sorted(found, key=lambda finding: order[finding.level])


def exit_code(findings: list[Finding]) -> int:
    """0 fine (as far as could be checked), 2 advice, 1 broken."""
    levels = {finding.level for finding in findings}
    return 1 if BROKEN in levels else 2 if ADVICE in levels else 0
