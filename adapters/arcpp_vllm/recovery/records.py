"""What a stage leaves behind when it goes: one fault record in the run folder.

vLLM reports an exception only from the last stage; one of any other stage is logged, the later
stages wait for a boundary that never comes, and 300 s later the engine dies with "RPC call to
sample_tokens timed out" (WorkerProc._execute_worker_rpc, 0.20 to 0.33). So a stage that fails in
a step records why and leaves, whatever its rank: the engine notices a process that ended within
milliseconds.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vllm.logger import init_logger

from arcpp.errors import ArcppError
from arcpp.supervise import Fault, classify
from arcpp_vllm import run_folder

logger = init_logger("vllm.arcpp.recovery")

EXIT_CODE = 70  # of a stage that left a record (EX_SOFTWARE)
_NAME = "fault-{}.json"


@contextlib.contextmanager
def leaving(worker: Any, step: int | None = None) -> Iterator[None]:
    """Within: an exception ends this stage's process at once, after it was recorded."""
    try:
        yield
    except Exception as error:
        fault = classify(
            error, device=str(worker.device), stage=worker.rank, rank=worker.rank, step=step
        )
        leave(fault)
        logger.error("arcpp: stage %d ends: %s", worker.rank, fault)
        if not isinstance(error, ArcppError):  # ours say all there is to say
            traceback.print_exception(error)
        _go()


@contextlib.contextmanager
def noting(worker: Any) -> Iterator[None]:
    """Within: an exception is recorded and goes on its way; for a start, which vLLM ends itself."""
    try:
        yield
    except Exception as error:
        leave(classify(error, stage=worker.rank, rank=worker.rank))
        raise


def _go() -> None:
    """End without running anything that could wait for the device or for another stage."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(EXIT_CODE)


def leave(fault: Fault) -> None:
    """Write the record of ``fault.rank``; the first of a process stays."""
    path = _folder() / _NAME.format(fault.rank)
    temporary = path.with_suffix(".part")
    try:
        descriptor = os.open(temporary, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            json.dump(fault.to_json(), file)
        os.link(temporary, path)  # fails where one is already
    except OSError:
        return  # the process still ends, and its exit code still speaks
    finally:
        temporary.unlink(missing_ok=True)


def collect() -> list[Fault]:
    """Records of this incident, by rank."""
    found = []
    for path in sorted(_folder().glob(_NAME.format("*"))):
        with contextlib.suppress(OSError, ValueError, ArcppError):
            found.append(Fault.from_json(json.loads(path.read_text(encoding="utf-8"))))
    return found


def clear() -> None:
    """Forget them: before stages start."""
    for path in _folder().glob(_NAME.format("*")):
        path.unlink(missing_ok=True)


def _folder() -> Path:
    return run_folder.ensure()
