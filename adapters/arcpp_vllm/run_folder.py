"""One temporary folder per serving process for every socket and rendezvous file of its engine.

Symptom: vLLM leaves its zmq sockets and its ``vllm_dist_*`` file in the temporary directory on
every stop, clean ones too (0.32.0, network_utils). Put into one folder, they can be removed by
whoever is left: the process that made the folder, the engine when that one was killed, or the
next start when everything was. Can go when vLLM unlinks what it binds.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import multiprocessing
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

_VARIABLE = "ARCPP_VLLM_RUN_FOLDER"
_SOCKETS = "VLLM_RPC_BASE_PATH"
_LOCK = "lock"
_YOUNG_S = 60.0  # between making a folder and locking it
_OWNED = re.compile(r"arcpp-([1-9]\d{0,8})-\w+", re.ASCII)
_LONGEST_SOCKET_FOLDER = 107 - 1 - 36  # bytes: sun_path, less "/" and vLLM's uuid


def known() -> Path | None:
    """This engine's run folder if it was made already, by this process or for it by its parent.

    A program started by one that used arcpp inherits the variable too, and is another engine.
    """
    given = os.environ.get(_VARIABLE)
    match = _OWNED.fullmatch(Path(given).name) if given else None
    if given is None or match is None or not Path(given).is_dir():
        return None
    ours = int(match[1]) == os.getpid() or multiprocessing.parent_process() is not None
    return Path(given) if ours else None


def ensure() -> Path:
    """This engine's run folder (mode 0700), made on first use and inherited by child processes."""
    folder = known()
    if folder is not None:
        return folder
    root = _root()
    _remove_stale(root)
    folder = Path(tempfile.mkdtemp(prefix=f"arcpp-{os.getpid()}-", dir=root))
    while not _hold(folder):  # another start took it for a stale one before it was locked
        folder = Path(tempfile.mkdtemp(prefix=f"arcpp-{os.getpid()}-", dir=root))
    inherited = os.environ.get(_VARIABLE)
    os.environ[_VARIABLE] = str(folder)
    if os.environ.get(_SOCKETS) in (None, inherited) and _takes_sockets(folder):
        os.environ[_SOCKETS] = str(folder)
    atexit.register(_remove_at_exit, os.getpid(), folder)
    return folder


def _root() -> Path:
    """The temporary directory, or /tmp where that is too long a path for sockets."""
    usual, short = Path(tempfile.gettempdir()), Path("/tmp")  # noqa: S108 (mkdtemp makes it ours)
    longest = f"arcpp-{os.getpid()}-12345678"
    if _takes_sockets(usual / longest) or not os.access(short, os.W_OK):
        return usual
    return short


def _takes_sockets(folder: Path) -> bool:
    return len(os.fsencode(folder)) <= _LONGEST_SOCKET_FOLDER


def _hold(folder: Path) -> bool:
    """Lock the folder for as long as this process lives; whether it is still there then."""
    try:
        descriptor = os.open(folder / _LOCK, os.O_CREAT | os.O_RDWR, 0o600)
    except FileNotFoundError:
        return False
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    if os.fstat(descriptor).st_nlink:
        return True
    os.close(descriptor)
    return False


def remove() -> None:
    """Remove the run folder, whoever made it; for the last process of a killed server."""
    folder = known()
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def temporary_files_here() -> Iterator[None]:
    """Let ``tempfile`` use the run folder for a while (vLLM's rendezvous file)."""
    before, folder = tempfile.tempdir, ensure()
    # vLLM's sockets follow tempfile where no folder was chosen for them.
    os.environ.setdefault(_SOCKETS, tempfile.gettempdir())
    tempfile.tempdir = str(folder)
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
    """Folders nobody holds any more: what a kill -9 of a whole server leaves.

    Held or not is the lock's to say: a process id means nothing in another container that
    shares the temporary directory.
    """
    for folder in temporary.glob("arcpp-*-*"):
        if _OWNED.fullmatch(folder.name) is None:
            continue
        with contextlib.suppress(OSError):
            if folder.stat().st_uid == os.getuid() and not folder.is_symlink():
                _remove_unheld(folder)


def _remove_unheld(folder: Path) -> None:
    """Remove a folder that no live process holds, or may be about to (no lock file yet).

    Under its lock: whoever was about to take it finds out when it gets the lock.
    """
    try:
        descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
    except FileNotFoundError:
        if time.time() - folder.stat().st_mtime >= _YOUNG_S:
            shutil.rmtree(folder, ignore_errors=True)
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    except BlockingIOError:
        return
    finally:
        os.close(descriptor)
