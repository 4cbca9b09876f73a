"""Make text fit to be pasted into an issue: no user, host or home, no whole serial or UUID."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path
from typing import Any

_UUID = re.compile(
    r"\b(?:GPU-)?([0-9a-f]{8})(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b|\b([0-9a-f]{8})[0-9a-f]{24}\b",
    re.IGNORECASE,
)
_PATH = re.compile(r"(?<![\w.:/])(~?(?:/[\w.+@~-]+)+)/([\w.+@~-]+)")
_KEPT = ("/dev", "/proc", "/sys", "/usr", "/etc", "/opt/intel")
_ADDRESS = re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}\b")
_URL_LOGIN = re.compile(r"(?<=://)[^/@\s]+@")
_SHORTEST_NAME = 3  # shorter names would hit parts of ordinary words


class Redactor:
    """Replaces what tells who or where this is. Names are taken from the machine by default."""

    def __init__(
        self, user: str | None = None, host: str | None = None, home: str | None = None
    ) -> None:
        self._home = home or str(Path.home())
        user = user or os.environ.get("USER") or os.environ.get("LOGNAME") or ""
        host = host or socket.gethostname()
        names = {user: "<user>", Path(self._home).name: "<user>", host: "<host>"}
        names[host.partition(".")[0]] = "<host>"
        self._names = [
            (re.compile(rf"\b{re.escape(name)}\b", re.IGNORECASE), shown)
            for name, shown in names.items()
            if len(name) >= _SHORTEST_NAME and name not in ("root", "localhost", "host", "user")
        ]

    def text(self, text: str) -> str:
        """``text`` without anything private."""
        if self._home not in ("/", ""):
            text = text.replace(self._home, "~")
        text = _URL_LOGIN.sub("", text)
        text = _UUID.sub(lambda match: f"{match[1] or match[2]}...", text)
        text = _PATH.sub(_shorten, text)
        text = _ADDRESS.sub("<address>", text)
        for pattern, shown in self._names:
            text = pattern.sub(shown, text)
        return text

    def value(self, value: Any) -> Any:
        """``value`` as JSON has it, with every text in it redacted (keys are ours)."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {key: self.value(each) for key, each in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.value(each) for each in value]
        return value


def _shorten(match: re.Match[str]) -> str:
    """A path that says nothing about the machine stays; of others the last part does."""
    whole = match[0]
    if whole.startswith(_KEPT):
        return whole
    return f"{'~/' if whole.startswith('~') else ''}.../{match[2]}"
