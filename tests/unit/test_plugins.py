"""Loading plugins: all, some or none of them; what cannot be used is one line with its package."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.plugin_packages import install

from arcpp import __version__
from arcpp.cli import main
from arcpp.errors import BadInput, PluginError
from arcpp.plugins import BUILT_IN, hook_names, load_plugins, loaded

GOOD = """
from arcpp import hookimpl
@hookimpl
def arcpp_plan_made(plan):
    print("told")
"""


@pytest.fixture(autouse=True)
def _fresh() -> Any:
    """Each test is a new process in this respect."""
    loaded.cache_clear()
    yield
    loaded.cache_clear()


def _names(names: tuple[str, ...] | None = None) -> set[str]:
    return {one.plugin for one in load_plugins(names).implementations()} - set(BUILT_IN)


def test_what_is_built_in_are_plugins_too() -> None:
    found = list(load_plugins(()).implementations())
    assert {one.plugin for one in found} <= set(BUILT_IN)
    assert all(one.built_in and one.package == "arcpp" for one in found)
    assert all(one.version == __version__ for one in found)
    hooks = {one.hook for one in found}
    assert {"arcpp_model_profile", "arcpp_plan", "arcpp_open_link"} <= hooks


def test_all_some_or_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install(monkeypatch, tmp_path, "arcpp_good_one", GOOD, entry="one")
    install(monkeypatch, tmp_path, "arcpp_good_two", GOOD, entry="two")
    assert {"one", "two"} <= _names()
    assert _names(()) == set()
    assert _names(("two",)) == {"two"}
    assert _names(("arcpp_good-ONE",)) == {"one"}  # the package, however it is written
    with pytest.raises(BadInput, match="load_plugins: 'tow' is no installed plugin; did you mean"):
        _names(("tow",))


def test_the_one_that_sorts_last_is_asked_first_and_built_in_last(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    source = "from arcpp import hookimpl\n@hookimpl\ndef arcpp_plan(): return None\n"
    for name in ("m_b", "m_a"):
        install(monkeypatch, tmp_path, f"arcpp_{name}", source, entry=name)
    found = load_plugins(("m_a", "m_b")).implementations("arcpp_plan")
    assert [one.plugin for one in found] == ["m_b", "m_a", "arcpp.builtin"]


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("import no_such_module_at_all", "cannot be loaded: ModuleNotFoundError: No module named"),
        ("def (", "cannot be loaded: SyntaxError"),
        ("raise SystemExit(3)", "cannot be loaded: SystemExit: 3"),
        ("raise ValueError('two\\nlines')", "cannot be loaded: ValueError: two lines"),
        (
            GOOD.replace("plan_made", "plan_mode"),
            "no hook arcpp_plan_mode; did you mean arcpp_plan",
        ),
        (GOOD.replace("arcpp_plan_made", "arcpp_xyzzy"), "there is no hook arcpp_xyzzy ("),
        (GOOD.replace("(plan)", "(plant)"), "'plant'"),
        (GOOD.replace("@hookimpl\n", ""), "arcpp_plan_made in arcpp_bad is not marked"),
    ],
    ids=["import", "syntax", "exit", "exception", "misspelt", "unknown", "parameter", "no mark"],
)
def test_what_cannot_be_used(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    source: str,
    wanted: str,
) -> None:
    install(monkeypatch, tmp_path, "arcpp_bad", source)
    with pytest.raises(PluginError) as caught:
        load_plugins()
    assert (caught.value.package, caught.value.version) == ("arcpp-bad", "1.2.3")
    line = str(caught.value)
    assert line.startswith("plugin arcpp-bad 1.2.3: ")
    assert wanted in line
    assert "ARCPP_LOAD_PLUGINS=''" in line
    assert len(line.splitlines()) == 1
    assert main(["plugins"]) == 1
    assert capsys.readouterr().err == f"arcpp: {line}\n"
    monkeypatch.setenv("ARCPP_LOAD_PLUGINS", "")
    assert main(["plugins"]) == 0


def test_an_imported_hook_is_not_taken_for_an_unmarked_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    source = GOOD + "from arcpp.hookspecs import arcpp_plan\nfrom arcpp.errors import BadInput\n"
    install(monkeypatch, tmp_path, "arcpp_importing", source)
    assert "arcpp_importing" in _names()


def test_one_name_for_two_plugins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install(monkeypatch, tmp_path, "arcpp_first", GOOD, entry="same")
    install(monkeypatch, tmp_path, "arcpp_second", GOOD, entry="same")
    with pytest.raises(PluginError, match=r"its name 'same' is taken by arcpp-first 1\.2\.3"):
        load_plugins()


def test_they_are_loaded_once_per_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install(monkeypatch, tmp_path, "arcpp_once", GOOD)
    assert loaded(None, False) is loaded(None, False)
    assert loaded((), False) is not loaded(None, False)


def test_the_command_lists_every_implementation(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    install(monkeypatch, tmp_path, "arcpp_good", GOOD, entry="good")
    assert main(["plugins"]) == 0
    found = json.loads(capsys.readouterr().out)["implementations"]
    assert {
        "hook": "arcpp_plan_made",
        "plugin": "good",
        "package": "arcpp-good",
        "version": "1.2.3",
        "function": "arcpp_good:arcpp_plan_made",
        "built_in": False,
    } in found
    assert [one["hook"] for one in found] == sorted(one["hook"] for one in found)
    assert {one["hook"] for one in found} <= set(hook_names())


def test_the_command_loads_what_the_variable_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    install(monkeypatch, tmp_path, "arcpp_good", GOOD, entry="good")
    monkeypatch.setenv("ARCPP_LOAD_PLUGINS", "")
    assert main(["plugins"]) == 0
    assert "arcpp_good" not in capsys.readouterr().out
    monkeypatch.setenv("ARCPP_LOAD_PLUGINS", "goods")
    assert main(["plugins"]) == 1
    assert "did you mean good?" in capsys.readouterr().err
