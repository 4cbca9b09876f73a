"""docs/hooks.md names every hook with its parameters, and its code does what it says."""

from __future__ import annotations

import inspect
import json
import re
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from arcpp import hookspecs
from arcpp.devices import Device, DeviceMemory
from arcpp.errors import DeadlineExceeded
from arcpp.hooks import Hooks
from arcpp.link import LinkEnd
from arcpp.planner import make_plan
from arcpp.plugins import BUILT_IN, Package, Plugins, hook_names, load_plugins
from arcpp.profile import load_profile
from arcpp.request import PlanRequest
from arcpp.settings import Settings
from arcpp.supervise import Fault, FaultAction, FaultKind
from arcpp.units import MiB

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "hooks.md").read_text(encoding="utf-8")
BUNDLED = ROOT / "tests" / "models" / "kjv-hybrid-8l" / "hf"
SECTIONS = {
    part.split("\n", 1)[0]: part for part in re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]
}
CARDS = [Device(name, DeviceMemory(256 * MiB, 256 * MiB)) for name in ("A", "B")]


def _section(hook: str) -> str:
    return next(text for title, text in SECTIONS.items() if title.startswith(f"{hook}("))


def _code(text: str, language: str) -> str:
    found = re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(found) == 1
    return str(found[0])


def _plugged(text: str) -> tuple[Hooks, dict[str, Any]]:
    """Hooks with the code of a section as a plugin, and the code's own names."""
    names: dict[str, Any] = {"__name__": "documented"}
    exec(_code(text, "python"), names)
    base = load_plugins(())
    plugin = type("Documented", (), {k: staticmethod(v) for k, v in names.items() if callable(v)})
    base.manager.register(plugin, "documented")
    base.manager.check_pending()
    packages = {name: Package(name, "0") for name, _ in base.manager.list_name_plugin()}
    return Hooks(Plugins(base.manager, packages), Settings()), names


@pytest.mark.parametrize("hook", hook_names())
def test_each_hook_has_its_page_with_its_parameters(hook: str) -> None:
    parameters = list(inspect.signature(getattr(hookspecs, hook)).parameters)
    assert f"{hook}({', '.join(parameters)})" in SECTIONS
    text = _section(hook)
    for parameter in parameters:
        assert re.search(rf"^- `{parameter}` - ", text, re.MULTILINE), parameter
    for said in ("Returns: ", "Process: ", " block", "Real plugins: "):
        assert said in text, said


def test_the_page_names_no_hook_that_is_not_there() -> None:
    assert {title.split("(")[0] for title in SECTIONS if "(" in title} == set(hook_names())
    assert set(re.findall(r"\barcpp_(?:\w+)(?=\()", PAGE)) <= {*hook_names()}


def test_plugins_named_on_the_page_implement_the_hook() -> None:
    example = (ROOT / "docs/examples/arcpp_example_plugin/arcpp_example_plugin.py").read_text()
    built_in = {(one.hook, one.plugin) for one in load_plugins(()).implementations()}
    for hook in hook_names():
        real = _section(hook).rsplit("Real plugins: ", 1)[1]
        assert "the example plugin" in real
        assert f"def {hook}(" in example
        named = set(re.findall(r"`(arcpp\.[\w.]+)`", real))
        assert {plugin for found, plugin in built_in if found == hook} <= named, hook
        assert named <= set(BUILT_IN)


def test_the_package_is_complete() -> None:
    project = tomllib.loads(_code(SECTIONS["Writing a plugin"], "toml"))
    assert project["project"]["entry-points"] == {"arcpp": {"mine": "arcpp_mine"}}
    example = tomllib.loads(
        (ROOT / "docs/examples/arcpp_example_plugin/pyproject.toml").read_text()
    )
    assert project["build-system"]["build-backend"] == example["build-system"]["build-backend"]


def test_first_plugin(capsys: pytest.CaptureFixture[str]) -> None:
    hooks, _ = _plugged(SECTIONS["Writing a plugin"])
    plan = hooks.plan(load_profile(BUNDLED), CARDS, PlanRequest(version="0.32.0"))
    hooks.plan_made(plan, None)
    hooks.plan_made(plan, 1)
    assert capsys.readouterr().out == f"mine: vllm@0.32.0 runs {plan.partition}\n"


def test_probe_devices() -> None:
    hooks, _ = _plugged(_section("arcpp_probe_devices"))
    assert hooks.probe_devices("vllm")[0].memory.source == "our inventory"


def test_model_profile(tmp_path: Path) -> None:
    hooks, _ = _plugged(_section("arcpp_model_profile"))
    config = {"architectures": ["OurModelForCausalLM"], "num_hidden_layers": 6}
    (tmp_path / "config.json").write_text(json.dumps(config))
    for path in (tmp_path, tmp_path / "config.json"):
        profile = hooks.model_profile(path, host="vllm")
        assert len(profile.layers) == 6
        smaller = hooks.model_profile(path, host="openvino")
        assert smaller.weights_bytes < profile.weights_bytes
        assert sum(hooks.plan(profile, CARDS, PlanRequest()).partition.counts) == 6
    assert hooks.model_profile(BUNDLED) == load_profile(BUNDLED)


def test_plan() -> None:
    hooks, _ = _plugged(_section("arcpp_plan"))
    profile = load_profile(BUNDLED)
    cards = [CARDS[0], replace(CARDS[1], memory=DeviceMemory(900 * MiB, 900 * MiB))]
    assert make_plan(profile, cards, PlanRequest()).partition.counts != (4, 4)
    assert hooks.plan(profile, cards, PlanRequest()).partition.counts == (4, 4)


def test_plan_made(capsys: pytest.CaptureFixture[str]) -> None:
    hooks, _ = _plugged(_section("arcpp_plan_made"))
    plan = hooks.plan(load_profile(BUNDLED), CARDS, PlanRequest())
    for stage in (None, 0, 1):
        hooks.plan_made(plan, stage)
    assert json.loads(capsys.readouterr().err)["partition"] == list(plan.partition.counts)


def test_open_link() -> None:
    hooks, _ = _plugged(_section("arcpp_open_link"))
    sender = hooks.open_sender(LinkEnd("stage0->stage1", True, 1, "cpu", None))
    receiver = hooks.open_receiver(LinkEnd("stage0->stage1", False, 0, "cpu", None))
    sender.send({"x": 3}, timeout=1)
    assert receiver.recv(timeout=1) == {"x": 3}
    with pytest.raises(DeadlineExceeded):
        receiver.recv(timeout=0)


def test_fault() -> None:
    hooks, _ = _plugged(_section("arcpp_fault"))
    lost = Fault(FaultKind.DEVICE_LOST, "gone", "reset it")
    assert [hooks.fault(lost, attempt) for attempt in (1, 2)] == [None, FaultAction.GIVE_UP]
    assert hooks.fault(Fault(FaultKind.STAGE_DIED, "gone", ""), 2) is None


def test_recovered(capsys: pytest.CaptureFixture[str]) -> None:
    hooks, _ = _plugged(_section("arcpp_recovered"))
    hooks.recovered(Fault(FaultKind.STAGE_DIED, "gone", ""), {"stop": 0.5, "start": 2.0})
    said = json.loads(capsys.readouterr().err)
    assert (said["kind"], said["seconds"]) == ("StageDied", 2.5)
