"""The name somebody probably meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(written: str, known: Iterable[str]) -> str:
    """End of a message about an unknown name: ``"; did you mean margin?"``, or "" if none is near.

    Letters' case and ``-`` for ``_`` count for nothing.
    """
    names = {_plain(name): name for name in known}
    found = get_close_matches(_plain(written), names, n=1, cutoff=0.6)
    return f"; did you mean {names[found[0]]}?" if found else ""


def _plain(name: str) -> str:
    return name.casefold().replace("-", "_")
