"""The run folder: private, found again by children, and never somebody else's to remove."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from arcpp_vllm import run_folder

VARIABLE, SOCKETS = "ARCPP_VLLM_RUN_FOLDER", "VLLM_RPC_BASE_PATH"
SUN_PATH = 108  # bytes of a socket's path in Linux, its end included
VLLM_SOCKET = "/" + "0" * 36  # what vLLM appends: a uuid


@pytest.fixture(autouse=True)
def temporary(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    for name in (VARIABLE, SOCKETS):
        monkeypatch.setenv(name, "")  # so that it is put back whatever happens to it
        monkeypatch.delenv(name)
    tmp_path_factory.getbasetemp()  # made on first use, by the tempfile that is changed here
    # Not tmp_path, which may be too long for sockets.
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


@pytest.fixture(scope="module")
def dead() -> int:
    """Process id of nobody."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def _left_by(pid: int | str, folder: Path) -> Path:
    left = folder / f"arcpp-{pid}-abc_1234"
    left.mkdir(mode=0o700)
    (left / "socket").touch()
    (left / "lock").touch()
    return left


def test_it_is_private_and_named_after_its_process(temporary: Path) -> None:
    folder = run_folder.ensure()
    assert folder.parent == temporary
    assert folder.name.startswith(f"arcpp-{os.getpid()}-")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_it_is_made_once_and_found_by_children(temporary: Path) -> None:
    folder = run_folder.ensure()
    assert run_folder.ensure() == folder
    assert os.environ[VARIABLE] == os.environ[SOCKETS] == str(folder)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(run_folder.ensure) == folder
    assert folder.is_dir(), "a child removed its parent's folder when it ended"
    assert list(temporary.iterdir()) == [folder]


def test_a_program_started_by_one_that_used_arcpp_has_its_own(temporary: Path) -> None:
    folder = run_folder.ensure()
    script = (
        "import os; from arcpp_vllm import run_folder; "
        f"print(run_folder.ensure(), os.environ[{SOCKETS!r}])"
    )
    environment = os.environ | {"TMPDIR": str(temporary)}
    other = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment
    )
    theirs, sockets = other.stdout.split()
    assert theirs == sockets != str(folder)
    assert not Path(theirs).exists(), "it goes with its process"
    assert folder.is_dir()


def test_a_folder_that_is_gone_is_made_again() -> None:
    first = run_folder.ensure()
    shutil.rmtree(first)
    second = run_folder.ensure()
    assert second.is_dir()
    assert second != first


def test_sockets_stay_where_the_user_wants_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SOCKETS, "/run/mine")
    run_folder.ensure()
    assert os.environ[SOCKETS] == "/run/mine"


@pytest.mark.parametrize("length", [40, 48, 49, 50, 51, 60, 100])
def test_sockets_always_have_a_folder_with_a_path_short_enough(
    temporary: Path, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = temporary / ("x" * (length - len(str(temporary)) - 1))
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    folder = run_folder.ensure()
    there = long / f"arcpp-{os.getpid()}-12345678"
    fits = len(os.fsencode(there)) + len(VLLM_SOCKET) < SUN_PATH
    assert folder.parent == (long if fits else Path("/tmp"))
    assert os.environ.get(SOCKETS) == str(folder)
    assert len(os.fsencode(folder)) + len(VLLM_SOCKET) < SUN_PATH
    with run_folder.temporary_files_here():
        assert os.environ[SOCKETS] == str(folder)
    shutil.rmtree(folder)


def test_both_sides_of_the_limit_are_tested() -> None:
    name = len(f"/arcpp-{os.getpid()}-12345678")
    assert 40 + name + len(VLLM_SOCKET) < SUN_PATH <= 100 + name + len(VLLM_SOCKET)


def test_a_socket_path_is_counted_in_bytes(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = temporary / ("\N{GREEK SMALL LETTER ALPHA}" * 30)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    folder = run_folder.ensure()
    assert folder.parent == Path("/tmp")
    shutil.rmtree(folder)


def test_folders_of_dead_processes_are_removed(temporary: Path, dead: int) -> None:
    left = _left_by(dead, temporary)
    run_folder.ensure()
    assert not left.exists()


def test_folders_that_are_held_stay_whatever_process_their_name_says(
    temporary: Path, dead: int
) -> None:
    """A process id means nothing in another container that shares the temporary directory."""
    left = _left_by(dead, temporary)
    with (left / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        run_folder.ensure()
        assert (left / "socket").exists()


def test_folders_about_to_be_held_stay_and_old_ones_go(temporary: Path, dead: int) -> None:
    young, old = _left_by(dead, temporary), _left_by(dead + 1, temporary)
    for folder in (young, old):
        (folder / "lock").unlink()
    os.utime(old, (1, 1))
    run_folder.ensure()
    assert young.exists()
    assert not old.exists()


def test_a_folder_is_held_by_its_process_and_let_go_with_it(temporary: Path) -> None:
    script = "from arcpp_vllm import run_folder; run_folder.ensure(); input()"
    environment = os.environ | {"TMPDIR": str(temporary)}
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, env=environment
    ) as other:
        deadline = time.monotonic() + 60
        while not (found := [*temporary.glob("arcpp-*/lock")]) and time.monotonic() < deadline:
            time.sleep(0.05)
        run_folder.ensure()
        assert found[0].exists()
        other.kill()
    os.environ.pop(VARIABLE)
    run_folder.ensure()
    assert not found[0].exists()


@pytest.mark.parametrize(
    "name",
    ["arcpp-start-1", "arcpp-{dead}", "arcpp-{dead}-", "arcpp-{dead}-a.b", "arcpp--{dead}-abc",
     "my-arcpp-{dead}-abc", "arcpp-{dead}-abc-backup", "arcpp-{dead}x-abc"],
)  # fmt: skip
def test_folders_of_other_names_stay(temporary: Path, dead: int, name: str) -> None:
    other = temporary / name.format(dead=dead)
    other.mkdir()
    run_folder.ensure()
    assert other.is_dir()


def test_a_link_is_not_followed(temporary: Path, dead: int, tmp_path: Path) -> None:
    precious = _left_by(dead, tmp_path)
    link = temporary / precious.name
    link.symlink_to(precious)
    run_folder.ensure()
    assert link.is_symlink()
    assert (precious / "socket").exists()


def test_a_link_inside_a_folder_is_not_followed(temporary: Path, dead: int, tmp_path: Path) -> None:
    (tmp_path / "precious").touch()
    left = _left_by(dead, temporary)
    (left / "link").symlink_to(tmp_path)
    run_folder.ensure()
    assert not left.exists()
    assert (tmp_path / "precious").exists()


def test_folders_of_other_users_stay(
    temporary: Path, dead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = _left_by(dead, temporary)
    monkeypatch.setattr(os, "getuid", lambda: left.stat().st_uid + 1)
    run_folder.ensure()
    assert (left / "socket").exists()


def test_a_number_that_is_no_process_id_stops_nothing(temporary: Path) -> None:
    _left_by("9" * 30, temporary)
    run_folder.ensure()


def test_temporary_files_go_there_for_a_while(temporary: Path) -> None:
    with run_folder.temporary_files_here():
        with tempfile.NamedTemporaryFile() as file:
            assert Path(file.name).parent == run_folder.ensure()
        inside = run_folder.ensure()
    assert tempfile.gettempdir() == str(temporary)
    assert inside.parent == temporary


def test_temporary_files_go_back_after_an_error(temporary: Path) -> None:
    with pytest.raises(KeyError), run_folder.temporary_files_here():
        raise KeyError
    assert tempfile.gettempdir() == str(temporary)


def test_removing_may_be_repeated() -> None:
    run_folder.remove()
    folder = run_folder.ensure()
    (folder / "socket").touch()
    run_folder.remove()
    run_folder.remove()
    assert not folder.exists()


def test_it_goes_with_its_process_but_not_with_a_forked_child(temporary: Path) -> None:
    script = """if True:
        import os, sys
        from arcpp_vllm import run_folder
        folder = run_folder.ensure()
        child = os.fork()
        if child == 0:
            sys.exit(0)  # runs exit functions
        os.waitpid(child, 0)
        print(folder, folder.is_dir())
    """
    environment = os.environ | {"TMPDIR": str(temporary)}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment
    )
    folder, survived = done.stdout.split()
    assert survived == "True"
    assert not Path(folder).exists()
