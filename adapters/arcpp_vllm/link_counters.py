"""What each end of a link counted, where the processes that serve can read it.

A worker keeps the figures of an end in a page of anonymous memory: a hop costs four stores there
and no system call, and no full or slow disk can hold it up. A small file in the run folder says
which process has the page, under which descriptor, and what the end is. Whoever reads opens the
page through /proc, so that nothing is left of it when the worker is gone.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import secrets
import struct
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vllm.logger import init_logger

from arcpp.link import LinkCounters

from . import run_folder

logger = init_logger("vllm.arcpp.link")

_PREFIX, _SUFFIX = "link-", ".json"
_WORDS = struct.Struct("16s4Q")  # token, hops, bytes, nanoseconds waited, verify failures
_NANO = 1e9
_MEMFD = "/memfd:arcpp "


@dataclass(frozen=True)
class EndOfLink:
    """link: its name. end: "send" or "receive". kind: of link. pinning, verification: as the end
    names them, "" where it has none. model_name: as vLLM's own metrics call the model."""

    link: str
    end: str
    kind: str
    pinning: str
    verification: str
    model_name: str


def describe(end: Any, sends: bool, model_name: str) -> EndOfLink:
    """``end`` (LinkSender or LinkReceiver) in words."""
    verification = getattr(end, "verification", "")
    return EndOfLink(
        end.name,
        "send" if sends else "receive",
        end.kind,
        str(getattr(end, "pinning", "")),
        str(getattr(verification, "value", verification)),
        model_name,
    )


class Published:
    """One end's page and the file that leads to it. Belongs to the thread that uses the end."""

    def __init__(self, folder: Path, end: EndOfLink, counters: LinkCounters) -> None:
        """Raises OSError when there is no memory or no room for the file."""
        self._counters, self._token = counters, secrets.token_hex(16)
        self._file = folder / f"{_PREFIX}{end.link}-{end.end}{_SUFFIX}"
        with contextlib.ExitStack() as undo:
            name = f"arcpp {end.link} {end.end}"
            self._descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
            undo.callback(os.close, self._descriptor)
            os.fchmod(self._descriptor, 0o600)
            os.write(self._descriptor, _WORDS.pack(bytes.fromhex(self._token), 0, 0, 0, 0))
            self._map = undo.enter_context(mmap.mmap(self._descriptor, _WORDS.size))
            where = {"process": os.getpid(), "descriptor": self._descriptor, "token": self._token}
            _write(self._file, json.dumps({"end": asdict(end), **where}))
            undo.pop_all()
        self._words = memoryview(self._map).cast("Q")

    def update(self) -> None:
        """Show what the end has counted by now; no effect once closed, by whatever thread."""
        words, counters = self._words, self._counters
        try:
            words[2] = counters.hops  # after two words of token
            words[3] = counters.bytes
            words[4] = int(counters.wait_seconds * _NANO)
            words[5] = counters.verify_failures
        except ValueError:
            return

    def close(self) -> None:
        """Take the page away; may be repeated. What a later engine published stays."""
        if self._descriptor < 0:
            return
        with contextlib.suppress(OSError):
            if self._token in self._file.read_text(encoding="utf-8"):
                self._file.unlink()
        self._words.release()
        self._map.close()
        os.close(self._descriptor)
        self._descriptor = -1


def publish(end: Any, *, sends: bool, model_name: str) -> Published | None:
    """Show what ``end`` counts from now on; None for one that counts nothing, and for no end.

    Metrics are not worth a start: without memory or room for them there is one line instead.
    """
    counters, folder = getattr(end, "counters", None), run_folder.known()
    if not isinstance(counters, LinkCounters) or folder is None:
        return None
    try:
        return Published(folder, describe(end, sends, model_name), counters)
    except OSError as error:
        logger.warning("arcpp: %s: no metrics of this end: %s", end.name, error)
        return None


def read_all(folder: Path) -> Iterator[tuple[EndOfLink, LinkCounters]]:
    """Every end that lives, by name, with what it counted. An end that just went is left out."""
    for file in sorted(folder.glob(f"{_PREFIX}*{_SUFFIX}")):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, struct.error):
            yield _read(json.loads(file.read_text(encoding="utf-8")))


def _read(said: dict[str, Any]) -> tuple[EndOfLink, LinkCounters]:
    page = Path(f"/proc/{int(said['process'])}/fd/{int(said['descriptor'])}")
    if not os.readlink(page).startswith(_MEMFD):  # reading a stranger's pipe would empty it
        raise ValueError("another process has this number now")
    with page.open("rb") as opened:
        token, hops, size, waited, failures = _WORDS.unpack(opened.read(_WORDS.size))
    if token != bytes.fromhex(said["token"]):
        raise ValueError("another process has this number now")
    return EndOfLink(**said["end"]), LinkCounters(hops, size, waited / _NANO, failures)


def _write(file: Path, text: str) -> None:
    """``text`` in ``file``, readable by this user only, for readers all at once."""
    new = file.with_suffix(".new")
    new.unlink(missing_ok=True)
    with open(os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as out:
        out.write(text)
    new.rename(file)
