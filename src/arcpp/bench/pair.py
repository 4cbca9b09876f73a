"""The two processes of a measurement: started together, ended together."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from types import TracebackType
from typing import IO, Any

from arcpp.errors import BenchFailed
from arcpp.probe.child import how_it_ended, last_words

MODULE = "arcpp.backends.hop_bench"
_LOOK_S = 0.1
_BOTH_S = 1.0  # for the other process to end too, once one did
_GIVE_UP_S = 5.0  # a process stuck in the kernel survives SIGKILL; it is left behind


class Pair:
    """Ranks 0 and 1 of ``python -m MODULE RANK FOLDER WANTED``, as a context manager.

    Leaving it kills both and removes their folder, whatever happened. Should this process be
    killed itself, both end as their standard input does.
    """

    def __init__(self, wanted: dict[str, Any], module: str = MODULE) -> None:
        self._wanted = json.dumps({**wanted, "ends_with_input": True})
        self._module = module
        self._processes: list[subprocess.Popen[bytes]] = []
        self._said: list[IO[bytes]] = []
        self._undo = ExitStack()

    def __enter__(self) -> Pair:
        with ExitStack() as undo:
            folder = undo.enter_context(tempfile.TemporaryDirectory(prefix="arcpp-bench-"))
            undo.callback(self._end)
            for rank in (0, 1):
                self._said.append(undo.enter_context(tempfile.TemporaryFile()))
                self._start(rank, folder)
            self._undo = undo.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._undo.close()

    def lines(self, patience_s: float) -> Iterator[dict[str, Any]]:
        """What rank 0 prints, until both are done.

        patience_s: the most seconds from one line to the next. Raises BenchFailed when a process
        fails, hangs or says something of another form.
        """
        out = self._processes[0].stdout
        assert out is not None
        rest, deadline = b"", time.monotonic() + patience_s
        while True:
            if select.select([out], [], [], _LOOK_S)[0]:
                read = os.read(out.fileno(), 1 << 16)
                if not read:
                    break
                *whole, rest = (rest + read).split(b"\n")
                for line in whole:
                    yield _understood(line)
                deadline = time.monotonic() + patience_s
            elif any(process.poll() for process in self._processes):
                break
            elif time.monotonic() > deadline:
                raise BenchFailed(f"the measurement said nothing for {patience_s:.0f} s")
        self._check_ends()

    def _start(self, rank: int, folder: str) -> None:
        # -P: the folder arcpp is called from must not shadow torch or the standard library.
        arguments = [sys.executable, "-P", "-m", self._module, str(rank), folder, self._wanted]
        self._processes.append(
            subprocess.Popen(  # noqa: S603  (our own interpreter and module)
                arguments,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
                stderr=self._said[rank],
                start_new_session=True,
            )
        )

    def _check_ends(self) -> None:
        """Raise BenchFailed unless both end well. Where one took the other along, tell the one."""
        deadline = time.monotonic() + _BOTH_S
        while time.monotonic() < deadline:
            if all(process.poll() is not None for process in self._processes):
                break
            time.sleep(_LOOK_S / 10)
        codes = [process.poll() for process in self._processes]
        if codes == [0, 0]:
            return
        failed = [rank for rank, code in enumerate(codes) if code]
        if not failed:
            raise BenchFailed("the measurement ended on one side only")
        words = {rank: last_words(self._said[rank]) for rank in failed}
        first = min(failed, key=lambda rank: ((codes[rank] or 0) > 0, "PeerLost" in words[rank]))
        said = f"{how_it_ended(codes[first] or 0)}: {words[first]}".rstrip(": ")
        raise BenchFailed(f"the process of end {first} failed: {said}")

    def _end(self) -> None:
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_GIVE_UP_S)
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    stream.close()


def _understood(line: bytes) -> dict[str, Any]:
    try:
        said = json.loads(line)
    except ValueError:
        said = None
    if not isinstance(said, dict):
        raise BenchFailed(f"the measurement said {line[:80].decode(errors='replace')!r}")
    return said
