"""One reason, said once, in the process where a person reads it."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from tests.support import fake_vllm

from arcpp.errors import BadInput, HostMismatch

BAD = BadInput("--pipeline-parallel-size", 9, "is too many")


@pytest.fixture
def refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name in ("ARCPP_VLLM_RUN_FOLDER", "VLLM_RPC_BASE_PATH"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    with fake_vllm.installed(tmp_path / "site"):
        yield import_module("arcpp_vllm.refusal")


def test_the_first_reason_stays(refusal: Any) -> None:
    assert refusal.left() is None
    for error in (BAD, HostMismatch("vLLM", "1", ("x is gone",), ">=2")):
        with pytest.raises(SystemExit) as caught:
            refusal.refuse(str(error))
        assert caught.value.code == 1
    assert refusal.left() == str(BAD)
    refusal.clear()
    assert refusal.left() is None
    refusal.clear()


def test_what_is_not_ours_is_raised_as_it_is(refusal: Any) -> None:
    error = RuntimeError("vLLM's own")
    with pytest.raises(RuntimeError) as caught:
        refusal.pass_on(error)
    assert caught.value is error


@pytest.mark.parametrize("left", [True, False], ids=["of a worker", "of the engine"])
def test_an_engine_in_the_users_process_raises_what_can_be_caught(refusal: Any, left: bool) -> None:
    if left:
        with pytest.raises(SystemExit):
            refusal.refuse(str(BAD))
    with pytest.raises(ValueError, match=r"^arcpp: --pipeline-parallel-size: 9 is too many$"):
        refusal.pass_on(RuntimeError("see stack trace") if left else BAD)


def test_an_engine_of_its_own_leaves_the_reason_and_goes(
    refusal: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(multiprocessing, "parent_process", object)
    with pytest.raises(SystemExit) as caught:
        refusal.pass_on(BAD)
    assert caught.value.code == 1
    assert refusal.left() == str(BAD)
    assert f"arcpp: {BAD}" in caplog.text


def test_the_hook_is_set_once(refusal: Any) -> None:
    refusal.end_with_reason()
    hook = sys.excepthook
    refusal.end_with_reason()
    assert sys.excepthook is hook


@pytest.mark.parametrize("program", ["vllm", "server.py"])
@pytest.mark.parametrize("ours", [True, False], ids=["ours", "not ours"])
def test_the_reason_is_the_last_line(tmp_path: Path, program: str, ours: bool) -> None:
    cause = "ValueError('x') from BadInput('--option', 1, 'is wrong')" if ours else "KeyError('x')"
    done = _run(tmp_path, program, f"raise {cause}")
    lines = done.stderr.strip().splitlines()
    assert done.returncode == 1
    if ours:
        assert lines[-1] == "arcpp: error: --option: 1 is wrong"
        assert len(lines) == 1 or program != "vllm"
    else:
        assert "arcpp" not in lines[-1]
    if program != "vllm" or not ours:
        assert "Traceback" in done.stderr


def test_a_reason_that_was_caught_is_not_said_again(tmp_path: Path) -> None:
    script = """
try:
    refusal.refuse(str(BadInput('--option', 1, 'is wrong')))
except SystemExit:
    pass
try:
    refusal.pass_on(RuntimeError('see stack trace'))
except ValueError:
    pass
raise KeyError('the user, later, something else')
"""
    assert "arcpp: error" not in _run(tmp_path, "server.py", script).stderr


def _run(folder: Path, program: str, script: str) -> subprocess.CompletedProcess[str]:
    """Run ``script`` in a program of that name that asked for the hook."""
    (folder / program).write_text(
        "import sys\n"
        f"sys.path.insert(0, {str(Path(__file__).parents[2])!r})\n"
        "import tempfile, pathlib\n"
        f"tempfile.tempdir = {str(folder)!r}\n"
        "from tests.support import fake_vllm\n"
        "from arcpp.errors import BadInput\n"
        f"with fake_vllm.installed(pathlib.Path({str(folder / 'site')!r})):\n"
        "    from arcpp_vllm import refusal\n"
        "refusal.end_with_reason()\n" + script
    )
    return subprocess.run(
        [sys.executable, str(folder / program)], capture_output=True, text=True, check=False
    )
