"""Processes that must be gone, and what they leave in shared memory and in the run folder."""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Iterator
from multiprocessing import shared_memory
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from arcpp.supervise import Deadline


def killed(processes: list[BaseProcess], seconds: float) -> list[int]:
    """Kill them; ids of those still there after ``seconds``.

    By id, not by what multiprocessing believes: to it, the children of a fork server that was
    killed are dead too.
    """
    handles: dict[int, int] = {}
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            if process.pid is not None and os.getsid(process.pid) == os.getsid(0):
                handles[os.pidfd_open(process.pid)] = process.pid
    try:
        for handle in handles:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        deadline, alive = Deadline(seconds), set(handles)
        while alive and not deadline.expired:
            alive -= set(multiprocessing.connection.wait(alive, deadline.remaining()))  # type: ignore[arg-type]
        return [handles[handle] for handle in alive]
    finally:
        for handle in handles:
            os.close(handle)
        for process in processes:
            process.join(0.1)  # so that no zombie of ours stays


@contextlib.contextmanager
def end_after(seconds: float) -> Iterator[None]:
    """Kill the processes started within if that takes longer: vLLM waits for them for ever."""
    before = {child.pid for child in multiprocessing.active_children()}

    def kill() -> None:
        for child in multiprocessing.active_children():
            if child.pid not in before:
                child.kill()

    timer = threading.Timer(seconds, kill)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def segments(executor: Any) -> list[str]:
    """Names of the shared memory behind the queues that the executor's workers made.

    A queue's segment is unlinked by the process that made it; a killed stage does not, and the
    resource tracker only when the whole server ends.
    """
    names = []
    for worker in executor.workers or ():
        buffer = getattr(worker.worker_response_mq, "buffer", None)
        memory = getattr(buffer, "shared_memory", None)
        if memory is not None:
            names.append(memory.name)
    return names


def unlink(names: list[str]) -> None:
    """Take those segments away that are still there."""
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            memory = shared_memory.SharedMemory(name=name)
            memory.close()
            memory.unlink()


def rendezvous_in(folder: Path | None) -> set[Path]:
    """vLLM's sockets and rendezvous files."""
    if folder is None:
        return set()
    return {p for p in folder.iterdir() if p.is_socket() or p.name.startswith("vllm_dist_")}
