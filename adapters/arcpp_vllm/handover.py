"""What the executor hands to its worker processes, and what they hand back if they refuse.

vLLM names worker classes by string and builds them in another process, so these few facts
travel in the environment; a refusal travels in a file, because vLLM reports a worker's own
exception to the executor as "see stack trace for root cause" only.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_BASE_WORKER = "ARCPP_VLLM_BASE_WORKER"
_REFUSALS = "ARCPP_VLLM_REFUSALS"


def set_base_worker(qualified_name: str) -> None:
    """Remember the worker class vLLM chose for the platform, for the workers to come."""
    os.environ[_BASE_WORKER] = qualified_name


def base_worker() -> str:
    """Qualified name of the platform's own worker class. Raises KeyError outside a worker."""
    return os.environ[_BASE_WORKER]


@contextmanager
def collecting_refusals() -> Iterator[None]:
    """While workers start: turn a refusal one of them left into a ValueError with its text."""
    folder = tempfile.mkdtemp(prefix="arcpp-start-")
    os.environ[_REFUSALS] = folder
    try:
        yield
    except Exception as error:
        refusals = sorted(Path(folder).iterdir())
        if not refusals:
            raise
        raise ValueError(refusals[0].read_text(encoding="utf-8")) from error
    finally:
        os.environ.pop(_REFUSALS, None)
        shutil.rmtree(folder, ignore_errors=True)


def refuse(rank: int, reason: str) -> None:
    """In a worker: leave the reason why stage ``rank`` does not start."""
    folder = os.environ.get(_REFUSALS)
    if folder:
        Path(folder, f"stage-{rank}").write_text(reason, encoding="utf-8")
