"""Processes that lose their parent end, in time and after their last words. Nothing is faked."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from arcpp_vllm import orphans

GRACE_S = 0.5
PATIENCE_S = 10.0


class Family:
    """A parent and its children, started the given way; each writes its id and what befell it."""

    def __init__(self, folder: Path, method: str, children: list[tuple[Any, ...]]) -> None:
        self.folder = folder
        self._parent = multiprocessing.get_context("spawn").Process(
            target=_parent, args=(folder, method, children)
        )
        self._parent.start()
        self.children = [int(self.said(f"child-{number}")) for number in range(len(children))]

    def said(self, name: str, patience: float = 20.0) -> str:
        deadline = time.monotonic() + patience
        while not (self.folder / name).exists():
            assert time.monotonic() < deadline, f"{name} was never written"
            time.sleep(0.02)
        return (self.folder / name).read_text()

    def kill_parent(self) -> None:
        self._parent.kill()
        # Not join: it waits for a pipe that a forked grandchild holds.
        deadline = time.monotonic() + PATIENCE_S
        while self._parent.is_alive() and time.monotonic() < deadline:
            time.sleep(0.02)

    def end(self) -> None:
        self.kill_parent()
        for child in self.children:
            _kill(child)


@pytest.fixture
def families() -> Iterator[list[Family]]:
    started: list[Family] = []
    yield started
    for family in started:
        family.end()


def _kill(pid: int) -> None:
    if _runs(pid):
        os.kill(pid, signal.SIGKILL)


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _gone(pid: int, patience: float = PATIENCE_S) -> bool:
    deadline = time.monotonic() + patience
    while _runs(pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_a_child_of_a_killed_parent_says_its_last_words_and_ends(
    tmp_path: Path, families: list[Family], method: str
) -> None:
    family = Family(tmp_path, method, [(_busy, None)])
    families.append(family)
    time.sleep(orphans._LOOK_S + 2 * GRACE_S)
    assert _runs(family.children[0]), "it ended before its parent did"
    family.kill_parent()
    assert _gone(family.children[0])
    assert family.said("last-words-0") == "parent gone: True"


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_a_signal_comes_first_and_may_be_enough(
    tmp_path: Path, families: list[Family], method: str
) -> None:
    family = Family(tmp_path, method, [(_ends_itself, signal.SIGTERM)])
    families.append(family)
    family.kill_parent()
    assert _gone(family.children[0])
    assert family.said("signalled-0") == str(int(signal.SIGTERM))
    assert not (tmp_path / "last-words-0").exists()


def test_a_child_that_ignores_the_signal_ends_all_the_same(
    tmp_path: Path, families: list[Family]
) -> None:
    family = Family(tmp_path, "spawn", [(_ignores, signal.SIGTERM)])
    families.append(family)
    family.kill_parent()
    assert _gone(family.children[0])
    assert family.said("last-words-0") == "parent gone: True"


def test_all_of_several_children_end_when_spawned(tmp_path: Path, families: list[Family]) -> None:
    family = Family(tmp_path, "spawn", [(_busy, None)] * 3)
    families.append(family)
    family.kill_parent()
    assert all(_gone(child) for child in family.children)


def test_forked_siblings_end_together(tmp_path: Path, families: list[Family]) -> None:
    family = Family(tmp_path, "fork", [(_busy, None), (_unwatched, None)])
    families.append(family)
    family.kill_parent()
    assert _gone(family.children[0])


def test_a_parent_that_lives_is_not_gone(tmp_path: Path, families: list[Family]) -> None:
    family = Family(tmp_path, "spawn", [(_reports, None)])
    families.append(family)
    assert family.said("report-0") == "parent gone: False"


def test_a_process_nobody_started_by_multiprocessing_is_left_alone() -> None:
    assert multiprocessing.parent_process() is None
    before = psutil.Process().num_threads()
    orphans.watch_parent(lambda: None, signum=signal.SIGKILL)
    assert psutil.Process().num_threads() == before
    assert not orphans.parent_gone()


# Below: what runs in the family.


def _parent(folder: Path, method: str, children: list[tuple[Any, ...]]) -> None:
    context = multiprocessing.get_context(method)
    for number, (act, signum) in enumerate(children):
        context.Process(target=_child, args=(folder, number, act, signum)).start()
    time.sleep(60)


def _child(folder: Path, number: int, act: Any, signum: int | None) -> None:
    # Where the signal is to be enough, a busy machine must not make it too late.
    orphans._GRACE_S = 60.0 if act is _ends_itself else GRACE_S

    def last_words() -> None:
        _say(folder, f"last-words-{number}", f"parent gone: {orphans.parent_gone()}")

    if act is not _unwatched:
        orphans.watch_parent(last_words, signum=signum)
    act(folder, number)


def _busy(folder: Path, number: int) -> None:
    """A stage that computes and never looks around; the main thread holds no lock."""
    _say(folder, f"child-{number}", str(os.getpid()))
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        time.sleep(0.01)


def _unwatched(folder: Path, number: int) -> None:
    _busy(folder, number)


def _ends_itself(folder: Path, number: int) -> None:
    def leave(signum: int, _frame: object) -> None:
        _say(folder, f"signalled-{number}", str(signum))
        os._exit(0)

    signal.signal(signal.SIGTERM, leave)
    _busy(folder, number)


def _ignores(folder: Path, number: int) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _busy(folder, number)


def _reports(folder: Path, number: int) -> None:
    _say(folder, f"report-{number}", f"parent gone: {orphans.parent_gone()}")
    _busy(folder, number)


def _say(folder: Path, name: str, text: str) -> None:
    (folder / f"{name}.new").write_text(text)
    (folder / f"{name}.new").rename(folder / name)
