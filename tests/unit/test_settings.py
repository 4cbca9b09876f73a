"""Settings: what each source may say, which is stronger, and one line for whatever is wrong."""

from __future__ import annotations

import json
import re
from dataclasses import FrozenInstanceError, fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arcpp.devices import Device, DeviceMemory
from arcpp.errors import BadInput
from arcpp.settings import (
    Settings,
    from_additional_config,
    from_file,
    read_settings,
    settings_table,
    variable,
)
from arcpp.units import GiB, MiB

VALUES: dict[str, tuple[object, str, object]] = {  # setting: in JSON, in a variable, read
    "link_timeout": (2.5, "2.5", 2.5),
    "link": ("gloo", "gloo", "gloo"),
    "link_verification": ("device", "device", "device"),
    "margin": ("512MiB", "512MiB", 512 * MiB),
    "reserve": ({"xpu:0": "2GiB"}, "xpu:0=2GiB", {"xpu:0": 2 * GiB}),
    "device_memory": (
        {"xpu:0": "16GiB", "xpu:1": "12GiB:11GiB"},
        "xpu:0=16GiB, xpu:1=12GiB:11GiB",
        {"xpu:0": (16 * GiB, None), "xpu:1": (12 * GiB, 11 * GiB)},
    ),
    "load_plugins": (["one", "two"], "one, two", ("one", "two")),
    "trace_hooks": (True, "1", True),
    "step_timeout": (7.5, "7.5", 7.5),
    "restart_budget": (3, "3", 3),
    "restart_window": (60, "60", 60.0),
    "standby": (True, "on", True),
    "recovery_queue": (16, "16", 16),
    "check_finite": (False, "off", False),
    "zero_state": (False, "0", False),
    "state_check_every": (7, "7", 7),
    "state_canary": (True, "on", True),
}


def _line(explicit: Any = None, **environ: str) -> str:
    with pytest.raises(BadInput) as caught:
        from_additional_config({"arcpp": explicit} if explicit is not None else {}, environ)
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


def test_every_setting_is_tested_here() -> None:
    assert list(VALUES) == [setting.name for setting in fields(Settings)]


@pytest.mark.parametrize("name", VALUES)
def test_each_source_means_the_same(name: str, tmp_path: Path) -> None:
    written, text, read = VALUES[name]
    file = tmp_path / "settings.json"
    file.write_text(json.dumps({name: written}))
    for settings in (
        from_additional_config({"arcpp": {name: written}}, {}),
        from_additional_config(None, {variable(name): text}),
        from_file(file, {}),
    ):
        assert getattr(settings, name) == read


@pytest.mark.parametrize("name", VALUES)
def test_what_is_said_explicitly_is_stronger_than_a_variable(name: str) -> None:
    written, _, read = VALUES[name]
    others = {"link_timeout": "9", "margin": "9", "reserve": "a=9", "load_plugins": ""}
    others |= {"device_memory": "a=9:8", "link": "ring", "link_verification": "off"}
    others |= {"step_timeout": "9", "restart_window": "9"}
    weak = {variable(name): others.get(name, "0")}
    assert getattr(from_additional_config({"arcpp": {name: written}}, weak), name) == read


def test_nothing_said_is_the_defaults() -> None:
    assert from_additional_config(None, {"PATH": "x", "ARCPP_VLLM_RUN_FOLDER": "y"}) == Settings()
    assert from_additional_config({"other": {"margin": 1}}, {}) == Settings()
    assert Settings().load_plugins is None


def test_an_empty_variable_loads_no_plugins() -> None:
    assert read_settings(environ={"ARCPP_LOAD_PLUGINS": ""}).load_plugins == ()


@pytest.mark.parametrize(
    ("explicit", "environ", "wanted"),
    [
        ({"link_timout": 3}, {}, "'link_timout' is no setting of arcpp; did you mean link_timeout"),
        ({"Margin": 3}, {}, "did you mean margin?"),
        ({"xyzzy": 3}, {}, "'xyzzy' is no setting of arcpp"),
        (None, {"ARCPP_MARGINS": "3"}, "'ARCPP_MARGINS' is no variable of arcpp; did you mean ARC"),
        ({"margin": "lots"}, {}, "arcpp: margin: 'lots' is not a size"),
        ({"margin": 1.5}, {}, "arcpp: margin: 1.5 is not a size"),
        ({"margin": None}, {}, "arcpp: margin: None is not a size"),
        ({"link_timeout": "30"}, {}, "arcpp: link_timeout: '30' is not a number of seconds"),
        ({"link_timeout": True}, {}, "True is not a number of seconds"),
        ({"link_timeout": 0}, {}, "0 is not a number of seconds above 0"),
        ({"link_timeout": float("nan")}, {}, "nan is not a number of seconds"),
        ({"link_timeout": 1e9}, {}, "at most 86400"),
        (None, {"ARCPP_LINK_TIMEOUT": "soon"}, "ARCPP_LINK_TIMEOUT: 'soon' is not a number"),
        (None, {"ARCPP_LINK_TIMEOUT": "inf"}, "ARCPP_LINK_TIMEOUT: inf is not a number"),
        ({"reserve": "2GiB"}, {}, "reserve: '2GiB' is not sizes by device"),
        ({"reserve": {"xpu:0": "much"}}, {}, "reserve: xpu:0: 'much' is not a size"),
        (None, {"ARCPP_RESERVE": "2GiB"}, "ARCPP_RESERVE: '2GiB' is not NAME=SIZE"),
        (None, {"ARCPP_RESERVE": "a=1,a=2"}, "each name once"),
        ({"load_plugins": "example"}, {}, "load_plugins: 'example' is not a list of names"),
        ({"load_plugins": [1]}, {}, "is not a list of names"),
        ({"trace_hooks": 1}, {}, "trace_hooks: 1 is not true or false"),
        (None, {"ARCPP_TRACE_HOOKS": "maybe"}, "ARCPP_TRACE_HOOKS: 'maybe' is not 1 or 0"),
        ({"restart_budget": -1}, {}, "restart_budget: -1 is not a whole number from 0 to"),
        ({"restart_budget": 1.5}, {}, "restart_budget: 1.5 is not a whole number"),
        ({"restart_budget": True}, {}, "restart_budget: True is not a whole number"),
        ({"recovery_queue": 1e9}, {}, "is not a whole number from 0 to 1000000"),
        (None, {"ARCPP_RECOVERY_QUEUE": "inf"}, "ARCPP_RECOVERY_QUEUE: inf is not a whole number"),
        (None, {"ARCPP_RESTART_BUDGET": "few"}, "ARCPP_RESTART_BUDGET: 'few' is not a whole"),
        ([1], {}, "--additional-config: arcpp: [1] is not an object"),
    ],
)
def test_what_is_wrong_is_one_line(explicit: Any, environ: dict[str, str], wanted: str) -> None:
    assert wanted in _line(explicit, **environ)


@pytest.mark.parametrize("name", ["arcp", "ARCPP", "arccp"])
def test_a_misspelt_section_is_not_somebody_elses(name: str) -> None:
    with pytest.raises(BadInput, match=r"is no section; did you mean arcpp\?"):
        from_additional_config({name: {}}, {})


@pytest.mark.parametrize("text", ["", "[1]", "{", '{"margin": }', "[" * 100_000])
def test_a_file_that_is_not_settings_is_one_line(text: str, tmp_path: Path) -> None:
    file = tmp_path / "settings.json"
    file.write_text(text)
    with pytest.raises(BadInput) as caught:
        from_file(file, {})
    assert len(str(caught.value).splitlines()) == 1
    with pytest.raises(BadInput, match="No such file"):
        from_file(tmp_path / "missing.json", {})


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
                    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))  # fmt: skip
def test_any_json_is_read_or_refused(value: object) -> None:
    for name in VALUES:
        try:
            settings = from_additional_config({"arcpp": {name: value}}, {})
        except BadInput as error:
            assert len(str(error).splitlines()) == 1  # noqa: PT017 (either outcome is fine)
        else:
            assert isinstance(settings, Settings)


def test_settings_cannot_be_changed_and_can_be_a_key() -> None:
    settings = read_settings({"reserve": {"a": 1}}, environ={})
    with pytest.raises(FrozenInstanceError):
        settings.margin = 3  # type: ignore[misc]
    assert hash(settings) == hash(read_settings({"reserve": {"a": 1}}, environ={}))


def test_a_reserve_for_a_device_that_is_not_there_is_refused() -> None:
    settings = read_settings({"reserve": {"xpu:7": "1GiB"}}, environ={})
    devices = [Device("xpu:0", DeviceMemory(1, 1)), Device("xpu:1", DeviceMemory(1, 1))]
    with pytest.raises(BadInput, match="'xpu:7' is no device here: xpu:0, xpu:1"):
        settings.reserves_on(devices)


def test_every_setting_is_documented() -> None:
    for setting in fields(Settings):
        assert {"help", "unit", "default"} <= setting.metadata.keys()
        assert re.search(
            rf"^\| `{setting.name}` \| `{variable(setting.name)}` ", settings_table(), re.M
        )
