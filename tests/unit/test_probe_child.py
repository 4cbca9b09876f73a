"""Probes in processes of their own: what hangs, crashes or talks nonsense is survived."""

from __future__ import annotations

from pathlib import Path

import pytest

from arcpp.probe import child, machine
from arcpp.probe.child import CRASHED, HUNG, OK, SILENT


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module "probe_under_test" that children can run; the test writes it."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path / "probe_under_test.py"


@pytest.mark.parametrize(
    ("body", "status", "detail"),
    [
        ("print('noise'); print('{\"a\": 1}')", OK, ""),
        ("raise RuntimeError('no driver')", CRASHED, "exit code 1: RuntimeError: no driver"),
        ("import os; os.abort()", CRASHED, "killed by SIGABRT"),
        ("import os; os.kill(os.getpid(), 11)", CRASHED, "killed by SIGSEGV"),
        ("pass", SILENT, "without an answer"),
        ("print('[1]')", SILENT, "another form"),
        ("print('not json')", SILENT, "without an answer"),
    ],
)
def test_how_children_end(module: Path, body: str, status: str, detail: str) -> None:
    module.write_text(body)
    outcome = child.run("probe_under_test", deadline_s=60)
    assert outcome.status == status
    assert detail in outcome.detail
    assert outcome.data == ({"a": 1} if status == OK else {})


def test_a_child_that_hangs_is_killed_with_what_it_started(module: Path, tmp_path: Path) -> None:
    module.write_text(
        "import subprocess, sys, time, pathlib\n"
        "code = 'import time; time.sleep(600)'\n"
        "grandchild = subprocess.Popen([sys.executable, '-c', code])\n"
        f"pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(grandchild.pid))\n"
        "time.sleep(600)\n"
    )
    started = child.Child("probe_under_test", deadline_s=600)
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        pass
    started._deadline = 0.0  # now
    outcome = started.outcome()
    assert outcome.status == HUNG
    assert "gave no answer" in outcome.detail
    state = Path(f"/proc/{(tmp_path / 'pid').read_text()}/stat")
    while state.exists() and state.read_text().rsplit(")", 1)[1].split()[0] != "Z":
        pass  # ends by the test's own timeout if it stays


def test_a_child_is_not_fooled_by_the_folder_it_is_called_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('not the json of Python')")
    monkeypatch.chdir(tmp_path)
    assert child.run("arcpp.backends.levelzero_devices", deadline_s=60).status == OK


def test_a_source_that_crashes_is_left_out(
    module: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module.write_text("import os; os.abort()")
    sources = {"torch": ("probe_under_test", "json"), "openvino": ("absent", "no_such_package")}
    monkeypatch.setattr(machine, "SOURCES", sources)
    found = machine.probe(tmp_path)
    assert found.devices == ()
    assert {name: outcome.status for name, outcome in found.outcomes.items()} == {"torch": CRASHED}


def test_answers_of_another_form_are_left_out() -> None:
    for data in ({}, {"sightings": 5}, {"sightings": [{"source": "torch"}, 3]}):
        assert machine.sightings_of(child.Outcome(OK, data)) == []
