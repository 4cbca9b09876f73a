"""What the OpenVINO engine needs of the core can be imported where there is no POSIX.

OVMS runs on Windows. Nothing here ran there: what Windows lacks is taken away from Python.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WITHOUT = """if True:
    import importlib, os, signal, sys
    lacking = ("fcntl", "grp", "pty", "pwd", "resource", "syslog", "termios", "tty")
    for name in lacking:
        sys.modules[name] = None
    for name in ("SIGALRM", "SIGBUS", "SIGHUP", "SIGKILL", "SIGUSR1"):
        delattr(signal, name)
    for name in ("fork", "geteuid", "getuid", "killpg", "memfd_create", "posix_fallocate",
                 "sched_getaffinity", "statvfs", "uname"):
        delattr(os, name)
"""
CORE = (
    "arcpp.backends",
    "arcpp.hooks",
    "arcpp.planner",
    "arcpp.probe.choose",
    "arcpp.probe.host_memory",
    "arcpp.probe.machine",
    "arcpp.profile",
    "arcpp.settings",
    "arcpp.state",
    "arcpp.supervise",
)
FOLDER = ROOT / "adapters" / "arcpp_openvino"
ADAPTER = tuple(f"arcpp_openvino.{path.stem}" for path in sorted(FOLDER.glob("*.py")))
#: Builds for this system, which are not what is asked about.
NATIVE = "if True:\n    import numpy, openvino, openvino.opset13\n"


def _imported(*modules: str, first: str = "") -> subprocess.CompletedProcess[str]:
    script = f"{first}{WITHOUT}\n    for name in {modules!r}: importlib.import_module(name)\n"
    path = os.pathsep.join((str(ROOT / "src"), str(ROOT / "adapters")))
    return subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_core_without_posix() -> None:
    done = _imported(*CORE)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.skipif(
    importlib.util.find_spec("openvino") is None,
    reason="openvino is not installed: its adapter cannot be imported",
)
def test_the_openvino_adapter_without_posix() -> None:
    done = _imported(*ADAPTER, first=NATIVE)
    assert done.returncode == 0, done.stderr[-2000:]


def test_a_module_that_needs_posix_is_seen() -> None:
    """The checks above can fail."""
    assert "fcntl" in _imported("fcntl").stderr
