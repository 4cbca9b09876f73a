"""What a server left behind: processes, shared memory, sockets and temporary files.

Processes are found by the session the server was started in, which children keep whatever becomes
of their parents (a marker in the environment would not do: vLLM retitles its processes, and that
overwrites it); sockets and files by giving each server a temporary directory of its own.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil


@dataclass
class Leftovers:
    """Everything found; falsy when there is nothing."""

    processes: list[str] = field(default_factory=list)
    shared_memory: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.processes or self.shared_memory or self.files)


def processes_of(session: int) -> list[psutil.Process]:
    """All live processes of ``session`` (the process id of the server's main process)."""
    found = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


def shared_memory() -> set[str]:
    """Names in /dev/shm now."""
    return set(os.listdir("/dev/shm"))


def look(session: int, folder: Path, before: set[str], *, patience: float) -> Leftovers:
    """What is left, after waiting up to ``patience`` seconds for it to go away."""
    deadline = time.monotonic() + patience
    while True:
        left = Leftovers(
            [_described(process) for process in processes_of(session)],
            sorted(shared_memory() - before - used_by_others(session)),
            sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if _matters(path)),
        )
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.2)


def _described(process: psutil.Process) -> str:
    """Process id and command; it may end while it is looked at."""
    try:
        return f"{process.pid} {' '.join(process.cmdline())[:120]}"
    except psutil.Error:
        return f"{process.pid} (ending)"


def used_by_others(session: int) -> set[str]:
    """Names in /dev/shm that a live process of another session has mapped: another server's."""
    names = set()
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == session:
                continue
            lines = Path(f"/proc/{process.pid}/maps").read_text().splitlines()
        except (psutil.Error, OSError):
            continue
        names |= {line.rpartition("/dev/shm/")[2] for line in lines if "/dev/shm/" in line}
    return names


def listening(session: int) -> set[str]:
    """Addresses the session's processes listen on, as "address:port"."""
    found = set()
    for process in processes_of(session):
        try:
            connections = process.net_connections(kind="inet")
        except psutil.Error:  # it ended meanwhile
            continue
        for connection in connections:
            if connection.status == psutil.CONN_LISTEN:
                found.add(f"{connection.laddr.ip}:{connection.laddr.port}")
    return found


def _matters(path: Path) -> bool:
    """Caches that other libraries keep are not ours to judge; files and sockets are."""
    return not path.is_dir() and not any(part.startswith("torchinductor_") for part in path.parts)
