"""What the API server shows of recovery: one small JSON file in the run folder.

Written by the engine, read by every API server for /health, /metrics and new requests; replaced
whole, so that a reader sees either the old or the new one.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

_FILE = "recovery.json"


@dataclass
class Status:
    """recovering: what for, or None. since: time.time() when it began. expected: seconds the last
    one took. faults: "kind|stage" -> count. seconds: phase -> sum. failed: request -> why.
    ended: the history, when the budget is spent."""

    recovering: str | None = None
    since: float = 0.0
    expected: float = 30.0
    faults: dict[str, int] = field(default_factory=dict)
    recoveries: int = 0
    replayed: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    ended: str | None = None

    @property
    def retry_after(self) -> int:
        """Whole seconds after which the server is expected to answer again; at least 1."""
        return max(1, round(self.since + self.expected - time.time()))


def write(folder: Path, status: Status) -> None:
    """Replace the file (0600)."""
    temporary = folder / f"{_FILE}.part"
    descriptor = os.open(temporary, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        json.dump(asdict(status), file)
    temporary.replace(folder / _FILE)


def read(folder: Path) -> Status:
    """What was written last; an untroubled Status when nothing was."""
    try:
        said: dict[str, Any] = json.loads((folder / _FILE).read_text(encoding="utf-8"))
        return Status(**said)
    except (OSError, ValueError, TypeError):
        return Status()
