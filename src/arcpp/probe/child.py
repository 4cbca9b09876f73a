"""Run a probe in a process of its own: whatever hangs or crashes there, this process goes on."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

OK, CRASHED, HUNG, SILENT = "ok", "crashed", "hung", "silent"
_GIVE_UP_S = 5.0  # a process stuck in the kernel survives SIGKILL; it is left behind


@dataclass(frozen=True)
class Outcome:
    """How a child ended. status: OK, CRASHED, HUNG (killed at its deadline) or SILENT (no answer).

    data: the JSON object it printed as its last line, or {}. detail: for people, one line.
    """

    status: str
    data: Mapping[str, Any]
    detail: str = ""


class Child:
    """``python -m module arguments`` that prints one JSON object as its last line of output."""

    def __init__(self, module: str, arguments: Sequence[str] = (), *, deadline_s: float) -> None:
        """Starts it. It has deadline_s seconds from now."""
        self._out: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (closed by outcome)
        self._err: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self._deadline = time.monotonic() + deadline_s
        self._allowed = deadline_s
        # -P: the folder arcpp is called from must not shadow torch or the standard library.
        self._process = subprocess.Popen(  # noqa: S603  (our own interpreter and module)
            [sys.executable, "-P", "-m", module, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=self._out,
            stderr=self._err,
            start_new_session=True,
        )

    def outcome(self) -> Outcome:
        """Wait for its end or its deadline; never longer than a few seconds beyond it."""
        with self._out, self._err:
            try:
                code = self._process.wait(max(0.0, self._deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                return self._killed()
            finally:
                self._end()
            if code != 0:
                said = f"{how_it_ended(code)}: {last_words(self._err)}".rstrip(": ")
                return Outcome(CRASHED, {}, said)
            self._out.seek(0)
            lines = self._out.read().decode(errors="replace").strip().splitlines()
            try:
                data = json.loads(lines[-1])
            except (IndexError, ValueError):
                return Outcome(SILENT, {}, "ended without an answer")
            if not isinstance(data, dict):
                return Outcome(SILENT, {}, "ended with an answer of another form")
            return Outcome(OK, data)

    def _killed(self) -> Outcome:
        self._end()
        try:
            self._process.wait(_GIVE_UP_S)
        except subprocess.TimeoutExpired:
            return Outcome(HUNG, {}, "hangs in the kernel and cannot be killed: reboot")
        return Outcome(HUNG, {}, f"gave no answer in {self._allowed:g} s and was killed")

    def _end(self) -> None:
        """Kill the child's whole session; no effect when it is gone."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)


def run(module: str, arguments: Sequence[str] = (), *, deadline_s: float) -> Outcome:
    """Outcome of ``python -m module arguments``."""
    return Child(module, arguments, deadline_s=deadline_s).outcome()


def last_words(output: IO[bytes]) -> str:
    """The last line that is in ``output``, cut where it is long; "" when there is none."""
    output.seek(0, os.SEEK_END)
    output.seek(max(0, output.tell() - 4096))
    lines = output.read().decode(errors="replace").strip().splitlines()
    return lines[-1].strip()[:300] if lines else ""


def how_it_ended(code: int) -> str:
    """An exit code in words."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
