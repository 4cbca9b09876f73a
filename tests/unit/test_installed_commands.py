"""Commands that other packages bring."""

from __future__ import annotations

from importlib import metadata
from typing import Any

import click
import pytest

from arcpp.cli import installed, main


@click.command("hello")
def hello() -> int:
    """Say hello."""
    click.echo("hello")
    return 0


no_command = "hello"


def _install(monkeypatch: pytest.MonkeyPatch, **values: str) -> None:
    entries = [metadata.EntryPoint(name, value, installed.GROUP) for name, value in values.items()]

    def found(**asked: Any) -> list[metadata.EntryPoint]:
        return entries if asked == {"group": installed.GROUP} else []

    monkeypatch.setattr(installed.metadata, "entry_points", found)


HERE = "tests.unit.test_installed_commands"


def test_one_runs_and_is_listed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _install(monkeypatch, hello="tests.unit.test_installed_commands:hello")
    assert main(["hello"]) == 0
    assert capsys.readouterr().out == "hello\n"
    assert main(["--help"]) == 0
    assert "hello" in capsys.readouterr().out
    assert main(["helo"]) == 1
    assert "did you mean hello?" in capsys.readouterr().err


def test_the_cores_own_win(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _install(monkeypatch, plugins=f"{HERE}:hello")
    assert main(["plugins"]) == 0
    assert "implementations" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (f"{HERE}:no_command", "is no command"),
        (f"{HERE}:missing", "AttributeError"),
        ("not_there:x", "ModuleNotFoundError"),
    ],
)
def test_one_that_cannot_be_loaded_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], value: str, says: str
) -> None:
    _install(monkeypatch, broken=value)
    assert main(["broken"]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "command broken" in error
    assert says in error
