"""Nothing outlives the server: processes that watch the one that started them.

Symptom: after ``kill -9`` of the API server, stock vLLM's engine and workers stay for ever and
keep their devices' memory (0.32.0, seen with the stock mp executor too).
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import threading
import time
from collections.abc import Callable

_GRACE_S = 15.0
_LOOK_S = 0.5
_THREAD = "arcpp-parent-watch"
#: Set in processes that a standby's fork server forked (recovery.standby).
FORKED = "ARCPP_VLLM_FORKED"


def watch_parent(last_words: Callable[[], None], *, signum: int | None = None) -> None:
    """When this process's parent dies: send ourselves ``signum``, and after a grace period leave.

    last_words runs at the very end, in the watching thread. No effect in a process that was not
    started by multiprocessing (an in-process engine belongs to its caller), nor the second time.
    """
    if multiprocessing.parent_process() is None and not _being_spawned():
        return
    if any(thread.name == _THREAD for thread in threading.enumerate()):
        return

    def watch() -> None:
        while (parent := multiprocessing.parent_process()) is None:
            time.sleep(_LOOK_S)
        while not multiprocessing.connection.wait([parent.sentinel], _LOOK_S):
            if parent_gone():
                break
        if signum is not None:
            os.kill(os.getpid(), signum)
        deadline = time.monotonic() + _GRACE_S
        while time.monotonic() < deadline:
            time.sleep(0.1)
        last_words()
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name=_THREAD).start()


def _being_spawned() -> bool:
    """Whether this process still unpickles what multiprocessing spawned it for.

    Until it has, parent_process() is None; the mark is the one multiprocessing.spawn goes by.
    """
    return bool(getattr(multiprocessing.current_process(), "_inheriting", False))


def leave_if_orphaned() -> None:
    """Leave now if the parent is gone: the last chance before a call that keeps the GIL.

    torch's FileStore retries for 300 s without giving it up when the folder of its file was
    removed with the server (torch 2.13), and no thread of this process runs meanwhile.
    """
    if parent_gone():
        raise SystemExit(1)


def parent_gone() -> bool:
    """Whether the process that started this one by multiprocessing has died.

    A parent's sentinel stays open in forked siblings, so a changed parent id counts too.
    """
    parent = multiprocessing.parent_process()
    if parent is None:
        return False
    adopted = os.getppid() != parent.pid and not _forkserver(parent.pid)
    return adopted or not parent.is_alive()


def _forkserver(parent: int | None) -> bool:
    """Whether a fork server stands between this process and the one that asked for it."""
    forked = FORKED in os.environ or multiprocessing.get_start_method(True) == "forkserver"
    return forked and _alive(parent)


def _alive(pid: int | None) -> bool:
    try:
        os.kill(pid or 0, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
