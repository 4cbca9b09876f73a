"""One temporary folder per serving process for every socket and rendezvous file of its engine.

Symptom: vLLM leaves its zmq sockets and its ``vllm_dist_*`` file in the temporary directory on
every stop, clean ones too (0.32.0, network_utils). Put into one folder, they can be removed by
whoever is left: the process that made the folder, the engine when that one was killed, or the
next start when everything was. Can go when vLLM unlinks what it binds.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

_VARIABLE = "ARCPP_VLLM_RUN_FOLDER"
_SOCKETS = "VLLM_RPC_BASE_PATH"
_OWNED = re.compile(r"arcpp-([1-9]\d{0,8})-\w+", re.ASCII)
_LONGEST_SOCKET_FOLDER = 107 - 1 - 36  # bytes: sun_path, less "/" and vLLM's uuid


def ensure() -> Path:
    """This engine's run folder (mode 0700), made on first use and inherited by child processes."""
    known = os.environ.get(_VARIABLE)
    if known and Path(known).is_dir():
        return Path(known)
    _remove_stale(Path(tempfile.gettempdir()))
    folder = Path(tempfile.mkdtemp(prefix=f"arcpp-{os.getpid()}-"))
    os.environ[_VARIABLE] = str(folder)
    if len(os.fsencode(folder)) <= _LONGEST_SOCKET_FOLDER:
        os.environ.setdefault(_SOCKETS, str(folder))
    atexit.register(_remove_at_exit, os.getpid(), folder)
    return folder


def remove() -> None:
    """Remove the run folder, whoever made it; for the last process of a killed server."""
    known = os.environ.get(_VARIABLE)
    if known:
        shutil.rmtree(known, ignore_errors=True)


@contextlib.contextmanager
def temporary_files_here() -> Iterator[None]:
    """Let ``tempfile`` use the run folder for a while (vLLM's rendezvous file)."""
    before = tempfile.tempdir
    tempfile.tempdir = str(ensure())
    try:
        yield
    finally:
        tempfile.tempdir = before


def _remove_at_exit(owner: int, folder: Path) -> None:
    if os.getpid() == owner:  # a forked child runs its parent's exit functions too
        shutil.rmtree(folder, ignore_errors=True)
        if os.environ.get(_SOCKETS) == str(folder):
            del os.environ[_SOCKETS]


def _remove_stale(temporary: Path) -> None:
    """Folders of processes that are gone: what a kill -9 of a whole server leaves."""
    for folder in temporary.glob("arcpp-*-*"):
        match = _OWNED.fullmatch(folder.name)
        if match is None or _alive(int(match[1])):
            continue
        with contextlib.suppress(OSError):
            if folder.stat().st_uid == os.getuid() and not folder.is_symlink():
                shutil.rmtree(folder, ignore_errors=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
