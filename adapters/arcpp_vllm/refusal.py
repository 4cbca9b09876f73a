"""Saying once, in one line, why a server does not start.

Symptom: a worker's exception reaches the engine as "see stack trace for root cause", the
engine's reaches the API process as "Engine core initialization failed", and the reason drowns in
three stack traces (0.32.0). Here the process that refuses leaves its reason in the run folder
and exits quietly; the API process prints it as its last line. Only for reasons arcpp gives
itself: any other exception is shown as vLLM shows it.
"""

from __future__ import annotations

import errno
import multiprocessing
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import NoReturn

from vllm.logger import init_logger

from arcpp.errors import ArcppError

from . import run_folder

logger = init_logger("vllm.arcpp")

_FILE = "refusal.txt"
_NO_SHARED_MEMORY = "Insufficient space in /dev/shm"  # vLLM's message queues
_ENGINE_DID_NOT_START = "Engine core initialization failed"  # vllm/v1/engine/utils.py


def clear() -> None:
    """Forget an earlier engine's refusal; before workers start."""
    _file().unlink(missing_ok=True)


def left() -> str | None:
    """The reason that was left, or None."""
    folder = run_folder.known()
    try:
        return None if folder is None else (folder / _FILE).read_text(encoding="utf-8")
    except OSError:
        return None


def await_first(seconds: float) -> None:
    """In a worker: give another one time to leave its reason first."""
    deadline = time.monotonic() + seconds
    while left() is None and time.monotonic() < deadline:
        time.sleep(0.05)


def refuse(reason: str) -> NoReturn:
    """In a worker: leave the reason and exit without a stack trace. The first reason stays."""
    try:
        with _file().open("x", encoding="utf-8") as file:
            file.write(reason)
    except FileExistsError:
        pass
    raise SystemExit(1)


def pass_on(error: BaseException) -> NoReturn:
    """In the engine, after workers failed: say why, if it was one of ours; else re-raise.

    An engine with a process of its own exits quietly, one inside its user's process raises
    ValueError, which that user can catch.
    """
    reason = left() or (str(error) if isinstance(error, ArcppError) else None)
    if reason is None and _NO_SHARED_MEMORY in str(error):  # in a container's 64 MB, say
        reason = f"{' '.join(str(error).split())} (docker run --shm-size 1g)"
    if reason is None:
        raise error
    if multiprocessing.parent_process() is None:
        clear()  # whoever catches this has heard it
        raise ValueError(f"arcpp: {reason}") from error
    if left() is None:
        _file().write_text(reason, encoding="utf-8")
    logger.error("arcpp: %s", reason)
    raise SystemExit(1)


def end_with_reason() -> None:
    """In the API process: when an uncaught exception ends it, let the reason be the last line.

    Under the ``vllm`` command the reason takes the place of the stack trace; in other programs
    it follows it. Idempotent.
    """
    before = sys.excepthook
    if getattr(before, "_arcpp", False):
        return

    def hook(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        reason = _reason_in(value)
        if reason is None or Path(sys.argv[0]).name != "vllm":
            before(kind, value, trace)
        if reason is not None:
            print(f"arcpp: error: {reason}", file=sys.stderr, flush=True)

    hook._arcpp = True  # type: ignore[attr-defined]
    sys.excepthook = hook


def _reason_in(value: BaseException | None) -> str | None:
    """The reason behind an uncaught exception: an ArcppError in its chain of causes, what the
    machine refused (a port in use, no permission, no space), or what a child process left when
    vLLM says that its engine did not start."""
    while value is not None:
        if isinstance(value, ArcppError):
            return str(value)
        told = _told_by_others(value)
        if told is not None:
            return told
        if _ENGINE_DID_NOT_START in str(value):
            return left()
        value = value.__cause__ or (None if value.__suppress_context__ else value.__context__)
    return None


def _told_by_others(value: BaseException) -> str | None:
    """One line for what the machine or the model hub refused, or None."""
    if type(value).__module__.partition(".")[0] == "huggingface_hub":
        return f"model: {' '.join(str(value).split())}"
    if not isinstance(value, OSError):
        return None
    if value.errno in (errno.EADDRINUSE, errno.EADDRNOTAVAIL):
        return f"{value.strerror}: choose another --port or --host"
    if value.errno in (errno.EACCES, errno.ENOSPC):
        return f"{value.strerror}{f': {value.filename}' if value.filename else ''}"
    return None


def _file() -> Path:
    return run_folder.ensure() / _FILE
