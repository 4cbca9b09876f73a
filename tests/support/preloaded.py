"""``vllm`` and Python modules, forked from one process that has vLLM imported.

Imports are most of a server's start on two cores (some 20 s in each of its processes, for every
server), so tests whose subject is not how processes come and go start servers here. What runs is
vLLM's own ``main`` with the given arguments; its engine and stages are forked where it would spawn
them. Modules run engines themselves, and a process that has used OpenMP cannot be forked: their
stages come from a fork server (setting ``standby``), itself forked before the first engine. Tests
of crashes, of recovery and the demo use the installed command.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib
import json
import multiprocessing.context
import multiprocessing.forkserver
import multiprocessing.util
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parent.parent.parent

_MODULES = (
    "vllm.entrypoints.cli.main",
    "vllm.entrypoints.cli.serve",
    "vllm.entrypoints.cli.benchmark.main",
    "vllm.entrypoints.cli.collect_env",
    "vllm.entrypoints.openai.api_server",
    "vllm.v1.engine.async_llm",
    "vllm.v1.engine.core",
    "vllm.v1.executor.multiproc_executor",
    "vllm.model_executor.models.qwen3_5",
    "vllm.model_executor.models.qwen3_next",
    "vllm.v1.worker.cpu_worker",
    "arcpp_vllm.executor",
)


class Forked:
    """A forked command; as much of ``subprocess.Popen`` as tests use. pid is also its session."""

    def __init__(self, pid: int, source: _Source) -> None:
        self.pid, self._source = pid, source
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Exit code, as Popen's; None while it runs."""
        if self.returncode is None:
            self.returncode = self._source.exit_code(self.pid)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Block until it ends. Raises subprocess.TimeoutExpired."""
        deadline = time.monotonic() + (timeout or float("inf"))
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("vllm", timeout or 0)
            time.sleep(0.05)
        return code

    def send_signal(self, signum: int) -> None:
        """As Popen's: nothing once it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signum)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


def start(program: str, *arguments: str, environment: dict[str, str], log: Path) -> Forked:
    """``vllm`` or a module (as ``python -m`` runs it) with these variables; both outputs are
    appended to ``log``."""
    return _source().start(
        program=program, arguments=arguments, environment=environment,
        files=[os.devnull, str(log), str(log)],
    )  # fmt: skip


def run(
    module: str, *, given: str, environment: dict[str, str], timeout: float, merged: bool = False
) -> subprocess.CompletedProcess[str]:
    """``python -m module`` with ``given`` as its input. merged: errors are in the output too.

    Raises subprocess.TimeoutExpired.
    """
    with tempfile.TemporaryDirectory(prefix="arcpp-run-") as folder:
        names = ("input", "output", "output" if merged else "errors")
        files = [Path(folder) / name for name in names]
        files[0].write_text(given)
        process = _source().start(
            program=module, arguments=(), environment=environment, files=[str(f) for f in files]
        )
        try:
            code = process.wait(timeout)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        return subprocess.CompletedProcess(module, code, *(f.read_text() for f in files[1:]))


class _Source:
    """The process that has everything imported, seen from the tests."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.preloaded", str(theirs.fileno())],
            cwd=ROOT, pass_fds=[theirs.fileno()], env=os.environ | _FIXED,
        )  # fmt: skip
        theirs.close()
        self._socket, self._pending = ours, b""
        self._codes: dict[int, int] = {}
        self._started: int | None = None
        atexit.register(self._end)

    def start(self, **job: Any) -> Forked:
        self._socket.sendall(json.dumps(job).encode() + b"\n")
        while self._started is None:
            self._hear()
        pid, self._started = self._started, None
        return Forked(pid, self)

    def exit_code(self, pid: int) -> int | None:
        while select.select([self._socket], [], [], 0)[0]:
            self._hear()
        return self._codes.pop(pid, None)

    def _hear(self) -> None:
        heard = self._socket.recv(4096)
        if not heard:
            raise RuntimeError(f"the preloaded process ended: {self._process.wait(10)}")
        *lines, self._pending = (self._pending + heard).split(b"\n")
        for said in map(json.loads, lines):
            if "started" in said:
                self._started = said["started"]
            else:
                self._codes[said["ended"]] = said["code"]

    def _end(self) -> None:
        self._socket.close()
        self._process.kill()
        self._process.wait()


# Read when modules are imported, so the same for every command. OpenMP's threads too: stages that
# arcpp gives one thread each would have as many as there are cores, all spinning.
_FIXED = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "VLLM_LOGGING_COLOR": "0",
}


@functools.cache
def _source() -> _Source:
    return _Source()


def _main(control: socket.socket) -> None:
    for name in _MODULES:
        importlib.import_module(name)
    ended, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    lines = control.makefile("r")
    while True:
        ready, _, _ = select.select([control, ended], [], [])
        if ended in ready:
            os.read(ended, 4096)
            _report(control)
        if control in ready:
            line = lines.readline()
            if not line:
                return
            pid = os.fork()
            if not pid:
                signal.set_wakeup_fd(-1)
                for number in (ended, wake, control.fileno()):
                    os.close(number)
                _become(**json.loads(line))
            control.sendall(json.dumps({"started": pid}).encode() + b"\n")


def _report(control: socket.socket) -> None:
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            pid, status = found
            code = os.waitstatus_to_exitcode(status)
            control.sendall(json.dumps({"ended": pid, "code": code}).encode() + b"\n")


def _become(
    program: str, arguments: list[str], environment: dict[str, str], files: list[str]
) -> NoReturn:
    """Turn this fork into ``program *arguments``. files: of its input, output and errors."""
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number, path in enumerate(files):
        how = os.O_WRONLY | os.O_APPEND | os.O_CREAT if number else os.O_RDONLY
        opened = os.open(path, how, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    for name in os.environ.keys() - environment.keys():
        del os.environ[name]
    os.environ.update(environment)
    tempfile.tempdir = None
    extra = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:0] = [path for path in extra if path not in sys.path]
    importlib.invalidate_caches()

    code = 1
    try:
        if program == "vllm":
            from vllm.entrypoints.cli.main import main

            contexts = multiprocessing.context._concrete_contexts  # type: ignore[attr-defined]
            contexts["spawn"] = contexts["fork"]
            sys.argv = [str(Path(sys.executable).with_name("vllm")), *arguments]
            code = main() or 0  # type: ignore[func-returns-value]
        else:
            spawn, multiprocessing.util.spawnv_passfds = (
                multiprocessing.util.spawnv_passfds, _fork_server,
            )  # fmt: skip
            multiprocessing.forkserver.ensure_running()
            multiprocessing.util.spawnv_passfds = spawn
            sys.argv = [program, *arguments]
            runpy.run_module(program, run_name="__main__", alter_sys=True)
            code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException as error:  # as the interpreter shows what nobody caught
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        _leave(code)


def _fork_server(path: bytes, arguments: list[str], fds: list[int]) -> int:
    """In the place of multiprocessing's start of a fork server: one with everything imported."""
    listener, alive = fds
    pid = os.fork()
    if not pid:
        for number in map(int, os.listdir("/proc/self/fd")):  # its end when the starter ends
            with contextlib.suppress(OSError):
                if number != alive and os.path.sameopenfile(number, alive):
                    os.close(number)
        with contextlib.suppress(SystemExit):
            multiprocessing.forkserver.main(listener, alive, [])
        os._exit(0)
    return pid


def _leave(code: int) -> NoReturn:
    """As an interpreter that ends does, for what the tests look at: exit handlers, output."""
    multiprocessing.util._exit_function()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _main(socket.socket(fileno=int(sys.argv[1])))
