"""Every piece of advice has facts here that bring it about, and a healthy machine has none."""

from __future__ import annotations

import ast
import inspect
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
from tests.support.fake_intel import ARC_A770, Card, FakePyzes, fake_torch

from arcpp.backends.levelzero_devices import sysman_sightings
from arcpp.backends.torch_devices import build, torch_sightings
from arcpp.doctor import Facts, Finding, advice, advise, exit_code, hardware, links, software
from arcpp.doctor.copies import DeviceCheck, PathResult
from arcpp.probe import FoundDevice, Sighting, merge
from arcpp.probe.child import CRASHED, HUNG, OK, Outcome
from arcpp.settings import Settings
from arcpp.units import GiB, MiB

B580 = Card()
A770 = Card("Intel(R) Arc(TM) A770 Graphics", ARC_A770, "0000:83:00.0", total=15 * GiB)
XPU_BUILD = {"version": "2.13.0+xpu", "cuda": None, "hip": None, "xpu": "2026", "xpu_devices": 1}


def on_bus(card: Card, **changes: Any) -> Sighting:
    names = {ARC_A770: "Intel Arc A770"}
    seen = Sighting(
        "pci", 0, names.get(card.device_id, "Intel Arc B580"), "xpu", pci=card.pci, driver="xe"
    )
    return replace(seen, **changes)


def devices(*cards: Card, **changes: Any) -> tuple[FoundDevice, ...]:
    seen = [*torch_sightings(fake_torch(cards)), *sysman_sightings(FakePyzes(cards))]
    return merge([*(on_bus(card, **changes) for card in cards), *seen])


def torch_says(**changes: Any) -> Outcome:
    return Outcome(OK, {"build": XPU_BUILD | changes})


def path(*names: str, **changes: Any) -> PathResult:
    return replace(PathResult(names, 10, (), {}, 12.0, 11.0), **changes)


def check(*paths: PathResult, **changes: Any) -> DeviceCheck:
    return replace(DeviceCheck("xpu:0", Outcome(OK, {}), paths or (path("xpu:0"),)), **changes)


HEALTHY = Facts(
    python="3.12.3",
    kernel="6.14.0",
    cards=(on_bus(B580),),
    devices=devices(B580),
    sources={"torch": torch_says(), "levelzero": Outcome(OK, {})},
    nodes={"renderD128": True},
    libraries={"libze_loader.so.1": True, "libze_intel_gpu.so.1": True},
    packages={
        "arcpp": "1", "torch": "2.13.0+xpu", "vllm": "0.32.0+xpu", "vllm-xpu-kernels": "1",
        "pyzes": "0.1.3", "openvino": "2026.4.1",
    },
    adapter=Outcome(OK, {"version": "0.32.0", "supported": ">=0.30", "missing": []}),
    shm_total=8 * GiB,
    shm_free=8 * GiB,
    memlock=None,
    copies=(check(),),
)  # fmt: skip


def without(package: str) -> dict[str, str]:
    return {name: value for name, value in HEALTHY.packages.items() if name != package}


def sources(**changes: Outcome) -> dict[str, Outcome]:
    return {**HEALTHY.sources, **changes}


def test_a_healthy_machine_is_fine() -> None:
    findings = advise(HEALTHY)
    assert [finding for finding in findings if finding.level != "ok"] == []
    assert len(findings) == 10
    assert exit_code(findings) == 0


NO_DEVICE: dict[str, Any] = {"cards": (), "devices": ()}
UNSEEN: dict[str, Any] = {"devices": merge([on_bus(B580)]), "sources": {"torch": torch_says()}}
CASES: list[tuple[str, str, str, dict[str, Any]]] = [
    ("advice", "cards", "no Intel card is on the PCI bus", NO_DEVICE),
    ("advice", "cards", "only an integrated GPU",
     {"cards": (on_bus(B580, integrated=True),), "devices": devices(B580, integrated=True)}),
    ("broken", "cards", "no kernel driver is bound to Intel Arc B580 at 0000:03:00.0",
     {"cards": (on_bus(B580, driver=None),)}),
    ("broken", "cards", "handed to a virtual machine",
     {"cards": (on_bus(B580, driver="vfio-pci"),)}),
    ("advice", "cards", "is driven by i915", {"cards": (on_bus(B580, driver="i915"),)}),
    ("broken", "drivers", "no /dev/dri/renderD*", {"nodes": {}}),
    ("broken", "drivers", "may not open /dev/dri/renderD128", {"nodes": {"renderD128": False}}),
    ("advice", "drivers", "may not open /dev/dri/renderD129",
     {"nodes": {"renderD128": True, "renderD129": False}}),
    ("broken", "drivers", "no runtime sees the card, and libze_loader.so.1 is not",
     UNSEEN | {"libraries": {"libze_loader.so.1": False, "libOpenCL.so.1": True}}),
    ("broken", "torch", "without torch", {"sources": {}}),
    ("broken", "torch", "cannot be asked for devices: killed by SIGSEGV",
     {"sources": sources(torch=Outcome(CRASHED, {}, "killed by SIGSEGV"))}),
    ("broken", "torch", "2.13.0 is a CUDA build, and 1 Intel card is here",
     {"sources": sources(torch=torch_says(version="2.13.0", xpu=None, cuda="13.0"))}),
    ("broken", "torch", "2.13.0+cpu is a CPU build, and 2 Intel cards are here",
     {"sources": sources(torch=torch_says(version="2.13.0+cpu", xpu=None)),
      "cards": (on_bus(B580), on_bus(A770))}),
    ("broken", "torch", "is a ROCm build",
     {"sources": sources(torch=torch_says(xpu=None, hip="7"))}),
    ("broken", "torch", "is an XPU build and sees no card",
     {"sources": sources(torch=torch_says(xpu_devices=0))}),
    ("advice", "torch", "sees 1 of 2 Intel cards (ZE_AFFINITY_MASK)",
     {"cards": (on_bus(B580), on_bus(A770)), "variables": {"ZE_AFFINITY_MASK": "0"}}),
    ("advice", "torch", "intel-extension-for-pytorch",
     {"packages": HEALTHY.packages | {"intel-extension-for-pytorch": "2.8"}}),
    ("advice", "sources", "levelzero cannot be asked: gave no answer in 90 s",
     {"sources": sources(levelzero=Outcome(HUNG, {}, "gave no answer in 90 s"))}),
    ("advice", "sources", "levelzero gives no figures: SysmanError",
     {"sources": sources(levelzero=Outcome(OK, {"error": "SysmanError: zesInit"}))}),
    ("advice", "sources", "pyzes is not installed", {"sources": {"torch": torch_says()}}),
    ("broken", "memory", "xpu:0: no memory figure can be believed",
     {"devices": devices(Card(total=0, torch_free=0, sysman=0x70000001))}),
    ("advice", "memory", "not believed: torch.accelerator: gives 0 bytes free",
     {"devices": devices(Card(torch_free=0))}),
    ("advice", "memory", "no source gives a possible free figure",
     {"devices": devices(Card(torch_free=0, sysman=0x70010000))}),
    ("advice", "memory", "reports all of 15.00 GiB free",
     {"devices": devices(Card(total=15 * GiB, torch_free=15 * GiB, sysman=0x70010000))}),
    ("advice", "memory", "xpu:0 drives a monitor", {"devices": devices(B580, display=True)}),
    ("advice", "hosts", "neither vLLM nor OpenVINO", {"packages": {"torch": "2"}, "adapter": None}),
    ("advice", "hosts", "OpenVINO 2025.1.0 is not in the compatibility table",
     {"packages": HEALTHY.packages | {"openvino": "2025.1.0"}}),
    ("advice", "hosts", "vLLM 0.21.0 is not in the compatibility table",
     {"packages": HEALTHY.packages | {"vllm": "0.21.0"}}),
    ("broken", "hosts", "vLLM 0.32.0+cpu is a CPU build",
     {"packages": HEALTHY.packages | {"vllm": "0.32.0+cpu"}}),
    ("broken", "hosts", "XPU kernels are missing", {"packages": without("vllm-xpu-kernels")}),
    ("broken", "hosts", "cannot be looked at: exit code 1: ImportError",
     {"adapter": Outcome(CRASHED, {}, "exit code 1: ImportError: libfoo")}),
    ("broken", "hosts", "lacks what arcpp needs: Executor.get_class is gone",
     {"adapter": Outcome(OK, {"missing": ["Executor.get_class is gone"], "supported": ">=0.30"})}),
    ("broken", "plugin", "no entry point arcpp", {"entry_point": False}),
    ("broken", "plugin", "VLLM_PLUGINS='lora, other' keeps vLLM from loading arcpp",
     {"variables": {"VLLM_PLUGINS": "lora, other"}}),
    ("broken", "plugin", "VLLM_PLUGINS=''", {"variables": {"VLLM_PLUGINS": ""}}),
    ("broken", "limits", "/dev/shm is not there", {"shm_total": None}),
    ("advice", "limits", "/dev/shm has 0.06 GiB", {"shm_total": 64 * MiB}),
    ("advice", "limits", "/dev/shm has 0.02 GiB left", {"shm_free": 16 * MiB}),
    ("advice", "limits", "memlock is limited to 0.01 GiB", {"memlock": 8 * MiB}),
    ("broken", "links", "no host would start: environment: 'ARCPP_LINC' is no variable",
     {"settings_error": "environment: 'ARCPP_LINC' is no variable of arcpp"}),
    ("advice", "links", "the setting link is gloo", {"settings": Settings(link="gloo")}),
    ("advice", "links", "the setting link_verification is off",
     {"settings": Settings(link_verification="off")}),
    ("broken", "copies", "copies of xpu:0 did not end: gave no answer",
     {"copies": (check(outcome=Outcome(HUNG, {}, "gave no answer in 180 s")),)}),
    ("broken", "copies", "xpu:1: corrupt: bytes differ after a copy of 4,097, 16,384 bytes",
     {"copies": (check(path("xpu:0", "xpu:1", wrong=(4097, 16384))),)}),
    ("broken", "copies", "xpu:0: refused: a copy of 16,384 bytes failed: RuntimeError: error 39",
     {"copies": (check(path("xpu:0", errors={16384: "RuntimeError: error 39"})),)}),
    ("advice", "copies", "xpu:0: slow: only 0.4 GB/s",
     {"copies": (check(path("xpu:0", to_host_gb_s=0.4)),)}),
    ("advice", "copies", "an allocation of 1 GiB failed",
     {"copies": (check(trial_reason="lost"),)}),
    ("advice", "copies", "does not move while memory is held",
     {"copies": (check(free_moved=False),)}),
    ("advice", "copies", "one allocation above 4 GiB fails",
     {"copies": (check(single_allocation=False),)}),
    ("not checked", "torch", "torch is not installed",
     {"packages": {"openvino": "2026.4.1"}, "sources": {}, "adapter": None}),
    ("not checked", "plugin", "vLLM is not installed", {"packages": {"torch": "2"}}),
    ("not checked", "copies", "no copy was tried", {"copies": ()}),
    ("not checked", "drivers", "no Intel card with a driver", NO_DEVICE),
    ("not checked", "memory", "no card is here", NO_DEVICE),
    ("not checked", "memory", "no runtime sees a card", UNSEEN),
]  # fmt: skip


@pytest.mark.parametrize(
    ("level", "subject", "says", "changes"), CASES, ids=[case[2][:40] for case in CASES]
)
def test_what_is_wrong_is_said_with_what_to_do(
    level: str, subject: str, says: str, changes: dict[str, Any]
) -> None:
    findings = advise(replace(HEALTHY, **changes))
    mine = [each for each in findings if each.subject == subject and says in each.says]
    assert [finding.level for finding in mine] == [level], findings
    assert mine[0].do or level == "not checked"
    assert exit_code(mine) == {"broken": 1, "advice": 2, "not checked": 0}[level]


def test_no_advice_is_without_a_case() -> None:
    for module in (hardware, software, links):
        reached = {line for *_, changes in CASES for line in reached_in(module, changes)}
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            if isinstance(node, ast.Yield):
                lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
                assert reached.intersection(lines), f"{module.__name__}:{node.lineno}"


def reached_in(module: ModuleType, changes: dict[str, Any]) -> set[int]:
    facts = replace(HEALTHY, **changes)
    looks = [look for look in advice._SUBJECTS.values() if look.__module__ == module.__name__]
    return {line for look in looks for line in _lines_of(look(facts))}


def _lines_of(found: Any) -> set[int]:
    """Line of every yield a generator stops at, in the innermost generator it delegates to."""
    lines = set()
    for _ in found:
        inner = found
        while inner.gi_yieldfrom is not None:
            inner = inner.gi_yieldfrom
        lines.add(inner.gi_frame.f_lineno)
    return lines


def test_the_broken_come_first() -> None:
    findings = advise(replace(HEALTHY, memlock=MiB, nodes={}))
    assert [finding.level for finding in findings][:2] == ["broken", "advice"]
    assert exit_code(findings) == 1
    assert exit_code([Finding("advice", "x", "y", "z")]) == 2


def test_cpu_only_machines_are_not_told_about_cards() -> None:
    facts = Facts(packages={"torch": "2.13.0+cpu"}, sources={"torch": Outcome(OK, {"build": build(
        fake_torch([], version="2.13.0+cpu"))})}, shm_total=8 * GiB, shm_free=8 * GiB)  # fmt: skip
    levels = {finding.subject: finding.level for finding in advise(facts)}
    assert {subject for subject, level in levels.items() if level == "advice"} == {"cards", "hosts"}
    unchecked = {subject for subject, level in levels.items() if level == "not checked"}
    assert unchecked == {"drivers", "memory", "plugin", "copies"}


def test_nothing_is_ok_that_takes_torch_where_torch_is_not() -> None:
    levels = {finding.subject: finding.level for finding in advise(Facts(shm_total=8 * GiB))}
    assert {levels[subject] for subject in ("torch", "copies", "memory", "plugin")} == {
        "not checked"
    }


PAIR = ("xpu:0", "xpu:1")


@pytest.mark.parametrize(
    ("path", "verdict"),
    [
        (path(*PAIR), "right"),
        (path(*PAIR, wrong=(4096,), errors={1: "x"}, to_host_gb_s=0.1), "corrupt"),
        (path(*PAIR, errors={1: "x"}, to_device_gb_s=None, to_host_gb_s=None), "refused"),
        (path(*PAIR, to_device_gb_s=0.0), "slow"),
        (path("cpu:0", to_host_gb_s=0.1), "right"),
    ],
)
def test_verdicts(path: PathResult, verdict: str) -> None:
    assert links.verdict(path) == verdict


@pytest.mark.parametrize(
    ("path", "settings", "does"),
    [
        (path(*PAIR), {}, "a ring in shared memory, through host memory, verification descriptor"),
        (path(*PAIR), {"link": "p2p"}, "from card to card where a content check at start passes"),
        (path(*PAIR), {"link": "gloo"}, "gloo, through sockets"),
        (path(*PAIR, wrong=(1,)), {}, "verifies every hop on both devices if one is wrong"),
        (path(*PAIR, wrong=(1,)), {"link_verification": "device"}, "an error, not in wrong text"),
        (path(*PAIR, wrong=(1,)), {"link_verification": "off"}, "set ARCPP_LINK_VERIFICATION=dev"),
        (path(*PAIR, wrong=(1,)), {"link": "gloo"}, "does not verify content (unset ARCPP_LINK)"),
        (path("xpu:0", wrong=(1,)), {"link_verification": "device"}, "do not serve on it"),
        (path(*PAIR, errors={1: "lost"}), {}, "ends a start or a hop over it with that error"),
        (path(*PAIR, to_host_gb_s=0.5), {}, "a boundary of 5 MiB in about 11 ms"),
    ],
)
def test_what_arcpp_does_follows_the_settings(
    path: PathResult, settings: dict[str, Any], does: str
) -> None:
    assert does in links.what_arcpp_does(path, Settings(**settings))


def test_where_there_is_no_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "is_supported", lambda: False)
    assert links.link_in_words(Settings()).startswith("gloo")
    assert "this machine has no other" in links.what_arcpp_does(
        path(*PAIR, wrong=(1,)), Settings(link_verification="device")
    )
