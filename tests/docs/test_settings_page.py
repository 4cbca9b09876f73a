"""docs/settings.md is what its generator writes, and what it shows is true."""

from __future__ import annotations

import json
import re

import pytest

from arcpp.cli import main
from arcpp.settings import from_additional_config

from .settings_page import PAGE, renewed

TEXT = PAGE.read_text(encoding="utf-8")


def test_the_table_is_not_stale() -> None:
    assert renewed(TEXT) == TEXT, "run: python -m tests.docs.settings_page"
    assert "| `link_timeout` | `ARCPP_LINK_TIMEOUT` |" in TEXT


def test_a_stale_table_would_be_noticed() -> None:
    assert renewed(TEXT.replace("| size | 256MiB", "| word |")) == TEXT


def test_the_command_line_shown_is_read() -> None:
    shown = re.search(r"--additional-config '(\{.*?\})'`", TEXT)
    assert shown is not None
    assert from_additional_config(json.loads(shown[1]), {}).margin == 512 << 20


def test_the_refusal_shown_is_what_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ARCPP_LINK_TIMOUT", "3")
    assert main(["plugins"]) == 1
    assert capsys.readouterr().err in TEXT
