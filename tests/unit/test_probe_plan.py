"""``arcpp plan`` without ``--device``: what was probed, in PCI order, with both hosts' numbers."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tests.support.fake_intel import Card, FakeCore, FakePyzes, fake_torch

from arcpp import builtin
from arcpp.backends.levelzero_devices import sysman_sightings
from arcpp.backends.openvino_devices import openvino_sightings
from arcpp.backends.torch_devices import torch_sightings
from arcpp.cli import main, options
from arcpp.probe import Sighting, merge
from arcpp.probe.choose import DISPLAY_RESERVE, devices_for
from arcpp.probe.machine import Machine
from arcpp.settings import read_settings
from arcpp.units import GiB

from .planner_models import BUNDLED

B580 = Card(pci="0000:83:00.0", torch_free=9 * GiB)
B70 = Card("Intel(R) Arc(TM) Pro B70 Graphics", total=30 * GiB, torch_free=29 * GiB)
IGPU = Card("Intel(R) Graphics", 0xA780, "0000:00:02.0", integrated=True)
Installer = Callable[..., None]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Installer:
    """Let this machine have the cards given to each source."""

    def install(
        torch: Sequence[Card] = (),
        sysman: Sequence[Card] = (),
        openvino: Sequence[Card] = (),
        pci: Sequence[Sighting] = (),
    ) -> None:
        seen = [*pci, *torch_sightings(fake_torch(torch))]
        seen += sysman_sightings(FakePyzes(sysman)) if sysman else []
        seen += openvino_sightings(FakeCore(openvino)) if openvino else []
        found = Machine(merge(seen))
        for module in (builtin, options):
            monkeypatch.setattr(module, "this_machine", lambda: found)

    return install


def plan(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["plan", str(BUNDLED), "--max-model-len", "4096", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_cards_come_in_pci_order_with_the_numbers_of_both_hosts(
    machine: Installer, capsys: pytest.CaptureFixture[str]
) -> None:
    machine([B580, B70], [IGPU, B70, B580], [IGPU, B580, B70])
    code, out, err = plan(capsys)
    assert code == 0, err
    assert "xpu:1: Intel(R) Arc(TM) Pro B70 Graphics at 0000:03:00.0" in out
    assert "vLLM --device-ids 1, OpenVINO GPU.2" in out
    assert "for vLLM in this order: --device-ids 1,0" in out
    words = " ".join(out.split())
    assert "devices (total, free, reserve): xpu:1 12.00, 11.00, 0.00; xpu:0 12.00, 9.00, 0.00" in (
        words
    )
    assert "not used (integrated, used when named): GPU.0: Intel(R) Graphics (iGPU)" in words
    result = json.loads(plan(capsys, "--json")[1])
    assert [stage["device"] for stage in result["stages"]] == ["xpu:1", "xpu:0"]
    assert [stage["free_bytes"] for stage in result["stages"]] == [12 * GiB - GiB, 9 * GiB]
    assert result["stages"][1]["memory_source"] == "torch.accelerator"
    assert result["vllm_args"][-2:] == ["--device-ids", "1,0"]
    assert [card["pci"] for card in result["devices"]] == ["0000:03:00.0", "0000:83:00.0"]
    assert [card["pci"] for card in result["devices_not_used"]] == ["0000:00:02.0"]
    assert [stage["device_bytes"] for stage in result["stages"]] == [12 * GiB, 12 * GiB]
    named = json.loads(plan(capsys, "--device", "xpu:0", "--json")[1])
    assert named["devices_not_used"] == []


def test_openvino_has_numbers_of_its_own(
    machine: Installer, capsys: pytest.CaptureFixture[str]
) -> None:
    machine([B580, B70], [], [IGPU, B580, B70])
    result = json.loads(plan(capsys, "--host", "openvino", "--json")[1])
    assert [stage["device"] for stage in result["stages"]] == ["GPU.2", "GPU.1"]
    assert "--device-ids" not in result["vllm_args"]


def test_an_integrated_gpu_is_used_when_named_only(
    machine: Installer, capsys: pytest.CaptureFixture[str]
) -> None:
    machine([], [IGPU], [IGPU])
    code, out, err = plan(capsys, "--host", "openvino")
    assert (code, out) == (1, "")
    assert "only an integrated GPU was found" in err
    code, out, err = plan(capsys, "--host", "openvino", "--device", "gpu.0")
    assert code == 0, err
    assert "GPU.0" in out


def test_the_cpu_is_used_when_named_only(
    machine: Installer, capsys: pytest.CaptureFixture[str]
) -> None:
    machine()
    code, out, err = plan(capsys)
    assert (code, out) == (1, "")
    assert "no accelerator was found" in err
    assert "declare each card as --device NAME=TOTAL" in err
    assert err.count("\n") == 1
    code, out, err = plan(capsys, "--device", "cpu", "--device", "cpu", "--partition", "4,4")
    assert code == 0, err
    assert "cpu" in out


def test_a_device_that_reports_0_of_0_is_refused_with_what_was_said(
    machine: Installer, capsys: pytest.CaptureFixture[str]
) -> None:
    machine([Card(total=0, torch_free=0), B580])
    code, out, err = plan(capsys)
    assert (code, out) == (1, "")
    assert "device xpu:0: 0 bytes of memory can be believed (torch.accelerator: gives" in err
    assert err.count("\n") == 1


def test_a_number_that_is_not_there(machine: Installer, capsys: pytest.CaptureFixture[str]) -> None:
    machine([B580])
    code, _, err = plan(capsys, "--device", "xpu:7")
    assert code == 1
    assert "'xpu:7' is not here (found: xpu:0)" in err


def test_what_is_declared_is_not_probed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def never() -> Any:
        raise AssertionError("probed")

    for module in (builtin, options):
        monkeypatch.setattr(module, "this_machine", never)
    assert plan(capsys, "--device", "xpu:0=12GiB")[0] == 0
    assert plan(capsys, "--device", "cpu")[0] == 0


def test_an_unknown_free_figure_is_said(
    machine: Installer, capsys: pytest.CaptureFixture[str]
) -> None:
    machine([Card(torch_free=0)])
    code, out, _ = plan(capsys)
    assert code == 0
    assert "total, free unknown" in out
    assert "no source gives a possible free figure" in out


def test_cuda_cards_are_planned_for_cuda(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = Machine(merge(torch_sightings(fake_torch([B580], kind="cuda"))))
    for module in (builtin, options):
        monkeypatch.setattr(module, "this_machine", lambda: found)
    result = json.loads(plan(capsys, "--json")[1])
    assert result["stages"][0]["device"] == "cuda:0"


def test_a_monitor_reserves_memory_unless_the_user_does(
    machine: Installer, capsys: pytest.CaptureFixture[str]
) -> None:
    screen = Sighting("pci", 0, "Intel Arc B580", "xpu", pci=B580.pci, display=True)
    machine([B580], pci=[screen])
    stage = json.loads(plan(capsys, "--json")[1])["stages"][0]
    assert stage["reserve_bytes"] == DISPLAY_RESERVE
    stage = json.loads(plan(capsys, "--json", "--reserve", "xpu:0=2GiB")[1])["stages"][0]
    assert stage["reserve_bytes"] == 2 * GiB


def test_the_hook_gives_what_the_host_can_see(machine: Installer) -> None:
    machine([B70], [B70, B580], [B70, B580])
    settings = read_settings(environ={})
    asked = builtin.arcpp_probe_devices
    assert [device.name for device in asked(settings, "vllm") or ()] == ["xpu:0"]
    assert [device.name for device in asked(settings, "openvino") or ()] == ["GPU.0", "GPU.1"]
    assert [device.name for device in asked(settings, None) or ()] == ["xpu:0", "GPU.1"]
    machine()
    assert asked(settings, "vllm") is None


def test_known_cards_have_a_bandwidth() -> None:
    found = merge(torch_sightings(fake_torch([B70, IGPU])))
    assert [device.bandwidth_gb_s for device in devices_for(found, "vllm")] == [608.0]


@pytest.mark.parametrize("named", [(), ("--device", "xpu:0")], ids=["probed", "named"])
def test_a_reserve_that_is_set_takes_the_place_of_the_monitors_once(
    machine: Installer,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    named: tuple[str, ...],
) -> None:
    screen = Sighting("pci", 0, "Intel Arc B580", "xpu", pci=B580.pci, display=True)
    machine([B580], pci=[screen])

    def reserved(*options: str) -> int:
        stage = json.loads(plan(capsys, "--json", *named, *options)[1])["stages"][0]
        return int(stage["reserve_bytes"])

    assert reserved() == DISPLAY_RESERVE
    monkeypatch.setenv("ARCPP_RESERVE", "xpu:0=2GiB")
    assert reserved() == 2 * GiB
    assert reserved("--reserve", "xpu:0=3GiB") == 3 * GiB
    monkeypatch.setenv("ARCPP_RESERVE", "xpu:9=2GiB")
    code, _, err = plan(capsys, *named)
    assert code == 1
    assert "setting reserve: 'xpu:9' is no device here: xpu:0" in err


@pytest.mark.parametrize("named", [(), ("--device", "xpu:0")], ids=["probed", "named"])
def test_declared_device_memory_wins_over_what_is_measured(
    machine: Installer,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    named: tuple[str, ...],
) -> None:
    machine([B580])
    monkeypatch.setenv("ARCPP_DEVICE_MEMORY", "xpu:0=10GiB:8GiB")
    stage = json.loads(plan(capsys, "--json", *named)[1])["stages"][0]
    assert (stage["free_bytes"], stage["memory_source"]) == (8 * GiB, "declared")
    monkeypatch.setenv("ARCPP_DEVICE_MEMORY", "xpu:0=10GiB")
    stage = json.loads(plan(capsys, "--json", *named)[1])["stages"][0]
    assert (stage["free_bytes"], stage["memory_source"]) == (
        9 * GiB,
        "torch.accelerator, total declared",
    )
    machine([Card(total=0, torch_free=0)])
    assert json.loads(plan(capsys, "--json", *named)[1])["stages"][0]["free_bytes"] == 10 * GiB
