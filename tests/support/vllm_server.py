"""A real ``vllm serve`` in processes of its own, for tests, demo and benchmarks."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from . import leftovers
from . import preloaded as forked

ROOT = Path(__file__).resolve().parent.parent.parent
HYBRID_MODEL = ROOT / "tests" / "models" / "kjv-hybrid-8l" / "hf"

# What torch compiles for one server serves the next one too: 12 s for the first log-probabilities.
_COMPILED = tempfile.TemporaryDirectory(prefix="arcpp-compiled-")

# Two cores and no accelerator: small pools, no compilation, nothing fetched.
SMALL_HOST = {
    "TORCHINDUCTOR_CACHE_DIR": _COMPILED.name,
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_COLOR": "0",
    "TOKENIZERS_PARALLELISM": "false",
}


class ServerDied(RuntimeError):
    """The server exited before it answered; carries the end of its log."""


class VllmServer:
    """``vllm serve MODEL *arguments`` on a free loopback port.

    A context manager: entering waits until it answers, leaving interrupts it as Ctrl-C would.
    ``log`` is the file all its processes write to; ``left`` what it left behind, once stopped.
    preloaded: forked from a process that has vLLM imported, see there.
    """

    def __init__(
        self,
        model: Path | str,
        *arguments: str,
        env: dict[str, str] | None = None,
        start_timeout: float = 600,
        on_wait: Callable[[str], None] | None = None,
        preloaded: bool = False,
    ) -> None:
        self.port = free_port()
        self.folder = Path(tempfile.mkdtemp(prefix="arcpp-server-"))
        self.log = self.folder / "log"
        self._temporary = self.folder / "tmp"
        self._temporary.mkdir()
        self._timeout, self._on_wait = start_timeout, on_wait
        self._shared_memory = leftovers.shared_memory()
        self.left: leftovers.Leftovers | None = None
        executable = Path(sys.executable).with_name("vllm")
        self.command = [
            str(executable), "serve", str(model), "--served-model-name", "model",
            "--host", "127.0.0.1", "--port", str(self.port), *arguments,
        ]  # fmt: skip
        environment = os.environ | SMALL_HOST | (env or {}) | {"TMPDIR": str(self._temporary)}
        self.process: subprocess.Popen[bytes] | forked.Forked
        if preloaded:
            self.log.touch(0o600)
            self.process = forked.start(
                "vllm", *self.command[1:], environment=environment, log=self.log
            )
            return
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                self.command, env=environment, stdout=log, stderr=log, start_new_session=True
            )

    @property
    def session(self) -> int:
        """Session id of all the server's processes."""
        return self.process.pid

    @property
    def url(self) -> str:
        """Base of the OpenAI API."""
        return f"http://127.0.0.1:{self.port}/v1"

    def text(self) -> str:
        """Everything logged so far."""
        return self.log.read_text(errors="replace")

    def __enter__(self) -> VllmServer:
        try:
            self.wait_ready()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        self.clean_up()

    def wait_ready(self) -> None:
        """Block until /health answers 200. Raises ServerDied or TimeoutError."""
        deadline = time.monotonic() + self._timeout
        while not self.healthy():
            if self.process.poll() is not None:
                raise ServerDied(f"exit code {self.process.returncode}\n{self.text()[-6000:]}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"not ready after {self._timeout} s\n{self.text()[-6000:]}")
            if self._on_wait is not None:
                self._on_wait(self.text())
            time.sleep(0.3)

    def healthy(self) -> bool:
        """Whether /health answers 200 now."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5) as reply:
                return reply.status == 200
        except (urllib.error.URLError, OSError):
            return False

    def metrics(self, prefix: str) -> dict[tuple[str, str], tuple[float, dict[str, str]]]:
        """(sample's name, its label "end" or "") -> (value, labels), of names with ``prefix``."""
        from prometheus_client.parser import text_string_to_metric_families

        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=30) as reply:
            text = reply.read().decode()
        samples = [one for family in text_string_to_metric_families(text) for one in family.samples]
        return {
            (one.name, one.labels.get("end", "")): (one.value, one.labels)
            for one in samples
            if one.name.startswith(prefix)
        }

    def stop(self, signum: int = signal.SIGINT, patience: float = 60) -> int:
        """Signal the server's main process, wait, note what is left. Returns the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signum)
        try:
            self.process.wait(patience)
        finally:
            self.note_leftovers()
            self.kill()
        return self.process.returncode

    def note_leftovers(self, patience: float = 20) -> None:
        """Fill ``left``, giving daemons and resource trackers ``patience`` seconds to go."""
        if self.left is None:
            self.left = leftovers.look(
                self.session, self._temporary, self._shared_memory, patience=patience
            )

    def kill(self) -> None:
        """Kill every process of this server, however orphaned."""
        for process in leftovers.processes_of(self.session):
            process.kill()
        self.process.wait()

    def clean_up(self) -> None:
        """Remove the log and the temporary directory."""
        shutil.rmtree(self.folder, ignore_errors=True)


def free_port() -> int:
    """A loopback port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
