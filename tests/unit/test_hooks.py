"""Every hook: who is asked, whose answer counts, and what a wrong answer is told as."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from arcpp import hookimpl, hookspecs
from arcpp.cli import main
from arcpp.devices import Device, DeviceMemory
from arcpp.errors import BadInput, DoesNotFit, PluginError, StagesDisagree
from arcpp.hooks import Hooks, check_same_kinds, check_same_plan, hooks_for, plan_fact
from arcpp.link import LinkEnd, LinkReceiver, LinkSender
from arcpp.planner import make_plan
from arcpp.plugins import Package, Plugins, hook_names, load_plugins, loaded
from arcpp.profile import ModelProfile, load_profile
from arcpp.request import PlanRequest
from arcpp.settings import Settings
from arcpp.supervise import Fault, FaultAction, FaultKind
from arcpp.units import MiB

from .planner_models import BUNDLED

CARDS = [Device(name, DeviceMemory(256 * MiB, 256 * MiB)) for name in ("A", "B")]
REQUEST = PlanRequest(version="0.32.0")


def asked(*functions: Callable[..., Any], settings: Settings | None = None) -> Hooks:
    """What is built in, and a plugin of ``functions``, each named after its hook."""
    base = load_plugins((), traced=(settings or Settings()).trace_hooks)
    plugin = SimpleNamespace(**{function.__name__: function for function in functions})
    base.manager.register(plugin, "mine")
    packages = {name: Package("arcpp", "0") for name, _ in base.manager.list_name_plugin()}
    packages["mine"] = Package("arcpp-mine", "7.1")
    return Hooks(Plugins(base.manager, packages), settings or Settings())


@pytest.fixture(scope="module")
def profile() -> ModelProfile:
    return load_profile(BUNDLED)


def test_every_hook_has_a_test_here() -> None:
    tests = [name for name in globals() if name.startswith("test_")]
    for hook in hook_names():
        assert any(name.startswith(f"test_{hook}") for name in tests), hook


def test_hookspecs_hold_nothing_else() -> None:
    functions = inspect.getmembers(hookspecs, inspect.isfunction)
    assert sorted(name for name, _ in functions) == hook_names()
    for name, function in functions:
        text = function.__doc__ or ""
        for parameter in inspect.signature(function).parameters:
            assert f"{parameter}: " in text, (name, parameter)


def test_arcpp_probe_devices_joins_and_the_plugin_wins() -> None:
    small = Device("A", DeviceMemory(5, 5, source="mine"))

    @hookimpl
    def arcpp_probe_devices(settings: Settings, host: str | None) -> list[Device]:
        assert isinstance(settings, Settings)
        return [small] if host == "vllm" else []

    found = asked(arcpp_probe_devices).probe_devices("vllm")
    assert found[0] == small
    assert [device.name for device in found].count("A") == 1
    assert small not in asked(arcpp_probe_devices).probe_devices(None)


@pytest.mark.parametrize("answer", [3, ["xpu:0"], [None], "xpu:0"])
def test_arcpp_probe_devices_answers_devices(answer: Any) -> None:
    @hookimpl
    def arcpp_probe_devices() -> Any:
        return answer

    with pytest.raises(PluginError, match=r"plugin arcpp-mine 7.1: arcpp_probe_devices returned"):
        asked(arcpp_probe_devices).probe_devices()


def test_arcpp_probe_devices_serves_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @hookimpl
    def arcpp_probe_devices() -> list[Device]:
        return CARDS

    _plug_in(monkeypatch, arcpp_probe_devices)
    assert main(["plan", str(BUNDLED)]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert {row.split()[1] for row in rows[1:3]} == {"A", "B"}


def test_arcpp_model_profile_takes_the_place_of_ours(profile: ModelProfile) -> None:
    seen = []

    @hookimpl
    def arcpp_model_profile(
        path: Path, weights_dtype: str | None, dtype: str | None, host: str | None
    ) -> Any:
        seen.append((path, weights_dtype, dtype, host))
        return replace(profile, architecture="Mine") if path.name == "mine" else None

    hooks = asked(arcpp_model_profile)
    assert hooks.model_profile("mine", dtype="float16", host="vllm").architecture == "Mine"
    assert hooks.model_profile(BUNDLED) == profile
    assert seen == [(Path("mine"), None, "float16", "vllm"), (BUNDLED, None, None, None)]


@pytest.mark.parametrize("host", ["vllm", "openvino"])
def test_arcpp_model_profile_is_told_the_host_of_the_command(
    host: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same architecture may profile differently: here, a host that keeps twice as much."""

    @hookimpl(wrapper=True)
    def arcpp_model_profile(host: str) -> Iterator[None]:
        found: Any = yield
        factor = {"vllm": 2, "openvino": 1}[host]
        roles = {role: factor * size for role, size in found.roles.items()}
        return replace(found, roles=roles)

    _plug_in(monkeypatch, arcpp_model_profile)
    assert main(["plan", str(BUNDLED), "--device", "a=1GiB", "--host", host, "--json"]) == 0
    weights = json.loads(capsys.readouterr().out)["stages"][0]["weights_bytes"]
    plain = load_profile(BUNDLED)
    layers = sum(layer.weights_bytes for layer in plain.layers)
    kept = plain.weights_bytes - layers
    if host == "openvino":  # our engine loads no vision tower
        kept -= plain.roles["vision"]
    assert weights == layers + kept * (2 if host == "vllm" else 1)


def test_arcpp_plan_takes_the_place_of_ours(profile: ModelProfile) -> None:
    @hookimpl
    def arcpp_plan(profile: Any, devices: Any, request: PlanRequest) -> Any:
        if request.partition is not None:
            return None
        return make_plan(profile, devices, replace(request, partition=(2, 6)))

    hooks = asked(arcpp_plan)
    assert hooks.plan(profile, CARDS, REQUEST).partition.counts == (2, 6)
    given = replace(REQUEST, partition=(5, 3))
    assert hooks.plan(profile, CARDS, given) == make_plan(profile, CARDS, given)


def test_arcpp_plan_is_asked_by_every_option_of_arcpp_plan(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[tuple[Any, ...]] = []

    @hookimpl
    def arcpp_plan(profile: Any, devices: Any, request: PlanRequest) -> None:
        seen.append((tuple(device.name for device in devices), request.partition))

    monkeypatch.setattr("arcpp.cli.plan.hooks_for", lambda _settings: asked(arcpp_plan))
    cards = ["--device", "A=256MiB", "--device", "B=255MiB"]
    log = Path(__file__).parent / "data" / "vllm-0.32-cpu-pp2-arcpp.log"
    arguments = ["plan", str(BUNDLED), *cards, "--host", "vllm@0.32.0", "--max-num-seqs", "8"]
    arguments += ["--max-num-batched-tokens", "64"]
    assert main([*arguments, "--reorder", "--explain"]) == 0, capsys.readouterr().err
    assert [names for names, given in seen if given is None] == [
        ("A", "B"),
        ("B", "A"),
        ("A", "B"),
    ]
    assert len([given for _, given in seen if given is not None]) == 2, "one layer either way"
    seen.clear()
    assert main([*arguments, "--from-log", str(log)]) == 0, capsys.readouterr().err
    assert [given for _, given in seen].count(None) >= 1
    assert seen[-1][1] is not None, "with the memory that was logged"


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [
        (lambda plan: 3, "arcpp_plan returned int, not a Plan"),
        (lambda plan: replace(plan, partition=replace(plan.partition, counts=(8,))), "1 stage, "),
        (lambda plan: replace(plan, partition=replace(plan.partition, counts=(4, 5))), "9 layers"),
        (lambda plan: replace(plan, stages=plan.stages[:1]), "stages that are not those of 4,4"),
        (lambda plan: plan, "changed the partition 5,3 to 4,4"),
    ],
)
def test_arcpp_plan_is_checked(profile: ModelProfile, answer: Any, wanted: str) -> None:
    even = make_plan(profile, CARDS, replace(REQUEST, partition=(4, 4)))

    @hookimpl
    def arcpp_plan() -> Any:
        return answer(even)

    with pytest.raises(PluginError) as caught:
        asked(arcpp_plan).plan(profile, CARDS, replace(REQUEST, partition=(5, 3)))
    assert str(caught.value).startswith("plugin arcpp-mine 7.1: arcpp_plan ")
    assert wanted in str(caught.value)


def test_arcpp_plan_may_refuse(profile: ModelProfile) -> None:
    tiny = [Device(name, DeviceMemory(MiB, MiB)) for name in ("A", "B")]
    with pytest.raises(DoesNotFit):
        asked().plan(profile, tiny, REQUEST)


def test_arcpp_plan_made_is_told(profile: ModelProfile) -> None:
    told = []

    @hookimpl
    def arcpp_plan_made(plan: Any, settings: Any, stage: Any) -> None:
        told.append((plan, settings, stage))

    plan, settings = make_plan(profile, CARDS, REQUEST), Settings(margin=5)
    asked(arcpp_plan_made, settings=settings).plan_made(plan, 1)
    assert told == [(plan, settings, 1)]


def test_arcpp_plan_made_is_told_by_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = []

    @hookimpl
    def arcpp_plan_made(plan: Any, stage: Any) -> None:
        told.append((str(plan.partition), stage))

    _plug_in(monkeypatch, arcpp_plan_made)
    arguments = ["plan", str(BUNDLED), "--device", "A=1GiB", "--device", "B=1GiB"]
    assert main([*arguments, "--partition", "3,5"]) == 0
    assert told == [("3,5", None)]


class _Sender(LinkSender):
    kind = "mine"
    name = "stage0->stage1"

    def send(self, tensors: Any, *, timeout: float) -> None:
        """Goes nowhere."""

    def close(self) -> None:
        """Holds nothing."""


class _Receiver(LinkReceiver):
    name = "stage0->stage1"  # and no kind

    def recv(self, *, timeout: float) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        """Holds nothing."""


def _end(sends: bool) -> LinkEnd:
    return LinkEnd("stage0->stage1", sends, peer=1, device="cpu", group=None)


def test_arcpp_open_link_takes_the_place_of_ours() -> None:
    seen = []

    @hookimpl
    def arcpp_open_link(end: LinkEnd, settings: Settings) -> Any:
        seen.append((end, settings))
        return _Sender()

    opened = asked(arcpp_open_link).open_sender(_end(True))
    assert isinstance(opened, _Sender)
    assert seen == [(_end(True), Settings())]


def test_arcpp_open_link_is_gloo_where_the_settings_say_so() -> None:
    """What it is without them needs both ends: tests/conformance/test_link.py."""
    pytest.importorskip("torch")
    hooks = Hooks(asked().plugins, Settings(link="gloo"))
    sender, receiver = hooks.open_sender(_end(True)), hooks.open_receiver(_end(False))
    assert (sender.kind, receiver.kind, sender.name) == ("gloo", "gloo", "stage0->stage1")


def test_arcpp_open_link_answers_the_end_it_was_asked_for() -> None:
    @hookimpl
    def arcpp_open_link(end: LinkEnd) -> Any:
        return _Sender() if not end.sends else _Receiver()

    hooks = asked(arcpp_open_link)
    with pytest.raises(PluginError, match="returned _Sender, not a LinkReceiver"):
        hooks.open_receiver(_end(False))
    with pytest.raises(PluginError, match="returned _Receiver, not a LinkSender"):
        hooks.open_sender(_end(True))


def test_arcpp_open_link_answers_with_a_kind() -> None:
    @hookimpl
    def arcpp_open_link() -> Any:
        return _Receiver()

    with pytest.raises(PluginError, match="returned _Receiver, which has no kind"):
        asked(arcpp_open_link).open_receiver(_end(False))


FAULT = Fault(FaultKind.DEVICE_LOST, "UR_RESULT_ERROR_DEVICE_LOST", "reset it", "xpu:1", 1)


def test_arcpp_fault_is_asked_and_nobody_need_answer() -> None:
    seen = []

    @hookimpl
    def arcpp_fault(fault: Fault, attempt: int, settings: Settings) -> Any:
        seen.append((fault, attempt, settings))
        return FaultAction.GIVE_UP if attempt > 1 else None

    hooks = asked(arcpp_fault)
    assert [hooks.fault(FAULT, 1), hooks.fault(FAULT, 2)] == [None, FaultAction.GIVE_UP]
    assert seen == [(FAULT, 1, Settings()), (FAULT, 2, Settings())]
    assert asked().fault(FAULT, 1) is None


@pytest.mark.parametrize("answer", ["restart", True, 3])
def test_arcpp_fault_answers_an_action(answer: Any) -> None:
    @hookimpl
    def arcpp_fault() -> Any:
        return answer

    with pytest.raises(PluginError, match=r"arcpp_fault returned \w+, not a FaultAction"):
        asked(arcpp_fault).fault(FAULT, 1)


def test_arcpp_recovered_is_told() -> None:
    told: list[Any] = []

    @hookimpl
    def arcpp_recovered(fault: Any, seconds: Any, settings: Any) -> None:
        told.append((fault, dict(seconds), settings))
        seconds.clear()

    seconds = {"detect": 0.1, "start": 3.0}
    asked(arcpp_recovered).recovered(FAULT, seconds)
    assert told == [(FAULT, seconds, Settings())]


def test_arcpp_recovered_that_breaks_is_told_as_the_plugins() -> None:
    @hookimpl
    def arcpp_recovered() -> None:
        raise KeyError("x")

    with pytest.raises(PluginError, match=r"arcpp-mine 7.1: arcpp_recovered raised KeyError"):
        asked(arcpp_recovered).recovered(FAULT, {})


def test_what_a_plugin_raises_is_told_as_its_own() -> None:
    @hookimpl
    def arcpp_model_profile() -> Any:
        raise KeyError("hidden\nsize")

    with pytest.raises(PluginError) as caught:
        asked(arcpp_model_profile).model_profile(BUNDLED)
    wanted = r"plugin arcpp-mine 7.1: arcpp_model_profile raised KeyError: 'hidden\nsize'"
    assert str(caught.value) == wanted
    assert isinstance(caught.value.__cause__, KeyError)


def test_our_own_errors_pass_through_a_plugin() -> None:
    @hookimpl
    def arcpp_model_profile() -> Any:
        raise BadInput("mine", 3, "is wrong")

    with pytest.raises(BadInput, match="mine: 3 is wrong"):
        asked(arcpp_model_profile).model_profile(BUNDLED)


def test_what_we_raise_ourselves_is_not_blamed_on_a_plugin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @hookimpl
    def arcpp_model_profile() -> Any:
        return None

    monkeypatch.setattr("arcpp.builtin.load_profile", lambda *_a, **_k: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        asked(arcpp_model_profile).model_profile(BUNDLED)


def test_a_wrapper_changes_the_answer_of_others(profile: ModelProfile) -> None:
    @hookimpl(wrapper=True)
    def arcpp_model_profile() -> Iterator[None]:
        found: Any = yield
        return replace(found, notes=("wrapped",))

    assert asked(arcpp_model_profile).model_profile(BUNDLED).notes == ("wrapped",)


def test_stages_with_one_plan_agree_and_others_do_not(profile: ModelProfile) -> None:
    plans = [make_plan(profile, CARDS, replace(REQUEST, partition=(n, 8 - n))) for n in (4, 4, 5)]
    facts = [plan_fact(plan) for plan in plans]
    check_same_plan(facts[:2])
    check_same_plan([plan_fact(None), plan_fact(None)])
    with pytest.raises(StagesDisagree, match=r"on the plan: stage 0 4,4 \(\w{12}\), stage 1 5,3"):
        check_same_plan([facts[0], facts[2]])
    with pytest.raises(StagesDisagree, match=r"stage 1 none \(no plan\)"):
        check_same_plan([facts[0], plan_fact(None)])


def test_plans_that_differ_in_any_figure_are_noticed(profile: ModelProfile) -> None:
    plan = make_plan(profile, CARDS, REQUEST)
    other = replace(plan, stages=(plan.stages[0], replace(plan.stages[1], num_blocks=1)))
    with pytest.raises(StagesDisagree):
        check_same_plan([plan_fact(plan), plan_fact(other)])


def test_links_with_two_kinds_of_ends_are_refused() -> None:
    first: dict[str, str | None] = {"receives": None, "sends": "gloo"}
    middle: dict[str, str | None] = {"receives": "gloo", "sends": "ring"}
    check_same_kinds([first, middle, {"receives": "ring", "sends": None}])
    with pytest.raises(StagesDisagree, match="stage 2 receives over gloo and sends over None"):
        check_same_kinds([first, middle, {"receives": "gloo", "sends": None}])


def test_a_trace_says_who_was_asked(capsys: pytest.CaptureFixture[str]) -> None:
    @hookimpl
    def arcpp_model_profile() -> Any:
        return None

    hooks = asked(arcpp_model_profile, settings=Settings(trace_hooks=True))
    hooks.model_profile(BUNDLED)
    with pytest.raises(BadInput):
        hooks.model_profile("nowhere")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    for line in lines:
        assert line.startswith("arcpp: hook arcpp_model_profile(path=")
        assert "asked mine, arcpp.builtin: " in line
        assert line.endswith(" ms")
    assert "ModelProfile(" in lines[0]
    assert "BadModel(" in lines[1]


def test_without_the_setting_nothing_is_traced(capsys: pytest.CaptureFixture[str]) -> None:
    loaded.cache_clear()
    hooks_for(Settings(load_plugins=())).model_profile(BUNDLED)
    assert capsys.readouterr().err == ""


def _plug_in(monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any]) -> None:
    monkeypatch.setattr("arcpp.cli.plan.hooks_for", lambda settings: asked(function))
