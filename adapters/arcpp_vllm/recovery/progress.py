"""What stages are doing: a page per stage in the run folder, for when none of them answers.

A stage waiting for a boundary that never comes is as silent as the one that should send it. What
tells them apart: the earliest stage that began a step and did not end it has the others waiting.
A stage that compiles is silent too, for longer than any step: vLLM compiles the ranking of
log-probabilities within the first step that asks for it (12 s on two cores).
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
from pathlib import Path

from vllm.logger import init_logger

from arcpp_vllm import run_folder

logger = init_logger("vllm.arcpp.recovery")

_PAGE = struct.Struct("<QQQQ")  # calls begun and ended, compilations begun and ended
_NAME = "progress-{}"


class Mark:
    """In a worker: its page. Two stores a step, no lock: the reader wants a rough picture."""

    def __init__(self, rank: int) -> None:
        path = run_folder.ensure() / _NAME.format(rank)
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_TRUNC, 0o600)
        try:
            os.ftruncate(descriptor, _PAGE.size)
            self._page = mmap.mmap(descriptor, _PAGE.size)
        finally:
            os.close(descriptor)
        self._counts = [0, 0, 0, 0]

    def begin(self) -> None:
        """A call begins."""
        self._count(0)

    def end(self) -> None:
        """It ended."""
        self._count(1)

    def note_compilations(self) -> None:
        """From now on in this process: torch calls back around the outermost compilation, and
        those callbacks are no public interface (torch 2.13)."""
        try:
            from torch._dynamo.callback import callback_handler

            callback_handler.register_start_callback(lambda *_: self._count(2))
            callback_handler.register_end_callback(lambda *_: self._count(3))
        except (ImportError, AttributeError) as error:
            logger.warning("arcpp: compilations count as time of a step: torch says %s", error)

    def _count(self, what: int) -> None:
        self._counts[what] += 1
        _PAGE.pack_into(self._page, 0, *self._counts)


def at_work(ranks: int, folder: Path | None = None) -> int | None:
    """The earliest of ``ranks`` stages that is in a call, or None."""
    pages = (_page(rank, folder) for rank in range(ranks))
    return next((rank for rank, page in enumerate(pages) if page[0] > page[1]), None)


def compiling(ranks: int, folder: Path | None = None) -> list[int]:
    """Those of ``ranks`` stages in the middle of a compilation."""
    pages = (_page(rank, folder) for rank in range(ranks))
    return [rank for rank, page in enumerate(pages) if page[2] > page[3]]


def _page(rank: int, folder: Path | None) -> tuple[int, ...]:
    folder = folder or run_folder.known()
    if folder is not None:
        with contextlib.suppress(OSError, struct.error):
            return _PAGE.unpack((folder / _NAME.format(rank)).read_bytes())
    return (0, 0, 0, 0)
