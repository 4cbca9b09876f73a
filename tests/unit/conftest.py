"""Unit tests see a machine without any accelerator, whatever they run on."""

from __future__ import annotations

import pytest

from arcpp import builtin
from arcpp.cli import options
from arcpp.probe.machine import Machine


@pytest.fixture(autouse=True)
def _no_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (builtin, options):
        monkeypatch.setattr(module, "this_machine", lambda: Machine(()))
