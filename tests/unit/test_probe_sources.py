"""Each source against a fake of each report: it answers, and never ends the process."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.support.fake_intel import ARC_B70, Card, FakeCore, FakePyzes, fake_sysfs, fake_torch

from arcpp.backends import levelzero_devices
from arcpp.backends.levelzero_devices import SysmanError, look_up, sysman_sightings
from arcpp.backends.openvino_devices import openvino_sightings
from arcpp.backends.torch_devices import build, torch_sightings
from arcpp.probe import HOST, Reading, judge
from arcpp.probe.host_memory import cpu_reading
from arcpp.probe.pci import pci_sightings, render_nodes
from arcpp.units import GiB, MiB

UNSUPPORTED = RuntimeError(
    "The device (Intel(R) Graphics) doesn't support querying the available free memory."
)


def test_torch_that_cannot_say_what_is_free() -> None:  # WSL2, integrated: pytorch#162909
    (seen,) = torch_sightings(fake_torch([Card(torch_free=UNSUPPORTED)]))
    verdict = judge(seen.readings)
    assert verdict.memory is not None
    assert (verdict.memory.total, verdict.free_known) == (12 * GiB, False)
    assert all("querying" in rejected.reason for rejected in verdict.rejected)


@pytest.mark.parametrize("name", ["mem_get_info", "accelerator", "get_device_properties"])
def test_torch_without_a_method(name: str) -> None:
    (seen,) = torch_sightings(fake_torch([Card()], without=[name]))
    verdict = judge(seen.readings)
    assert verdict.memory is not None
    assert verdict.memory.free == 11 * GiB


def test_torch_whose_driver_fails_at_every_question() -> None:
    lost = RuntimeError("level_zero backend failed with error: 20 (UR_RESULT_ERROR_DEVICE_LOST)")
    (seen,) = torch_sightings(fake_torch([Card(total=lost, torch_free=lost)]))
    verdict = judge(seen.readings)
    assert verdict.memory is None
    assert any("DEVICE_LOST" in str(rejected) for rejected in verdict.rejected)


@pytest.mark.parametrize("kind", ["xpu", "cuda"])
def test_torch_numbers_its_devices(kind: str) -> None:
    seen = torch_sightings(fake_torch([Card(), Card(pci="0000:83:00.0")], kind=kind))
    assert [sighting.number for sighting in seen] == [f"{kind}:0", f"{kind}:1"]


def test_torch_without_any_device_or_backend() -> None:
    assert torch_sightings(fake_torch([])) == []
    assert torch_sightings(ModuleType("torch")) == []
    assert build(fake_torch([]))["version"] == "2.13.0+xpu"


def test_sysman_reads_the_cards_own_module() -> None:
    (seen,) = sysman_sightings(FakePyzes([Card(sysman=(12 * GiB, 10 * GiB))], host_module=True))
    assert seen.readings == (Reading("Level Zero sysman", 12 * GiB, 10 * GiB),)
    assert (seen.pci, seen.integrated, seen.max_allocation) == ("0000:03:00.0", False, 4 * GiB)


def test_sysman_without_the_address_takes_it_from_the_uuid() -> None:
    (seen,) = sysman_sightings(FakePyzes([Card(gives_pci=False)]))
    assert seen.pci == "0000:03:00.0"


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (0x70010000, "elevated privileges"),
        (0x70010001, "not available"),
        (0x7FFFFFFE, "0x7ffffffe"),
    ],
)
def test_sysman_that_may_not_say(code: int, reason: str) -> None:
    (seen,) = sysman_sightings(FakePyzes([Card(sysman=code)]))
    assert reason in str(seen.readings[0].error)


def test_sysman_that_does_not_start() -> None:
    with pytest.raises(SysmanError, match="zesInit: not initialised"):
        sysman_sightings(FakePyzes([Card()], init=0x78000001))


def test_looking_up_a_card_never_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    (torch_device,) = torch_sightings(fake_torch([Card()]))
    monkeypatch.setitem(sys.modules, "pyzes", None)
    card, readings = look_up(torch_device)
    assert card is None
    assert "no pyzes" in str(readings[0].error)
    for fake in (FakePyzes([Card()], init=1), FakePyzes([]), FakePyzes([Card()])):
        monkeypatch.setitem(sys.modules, "pyzes", fake)  # type: ignore[arg-type]
        card, readings = look_up(torch_device)
        assert len(readings) == 1
    assert card is not None


def test_levelzero_child_answers_without_a_loader(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pyzes", None)
    assert levelzero_devices.main() == 0
    assert '"sightings": []' in capsys.readouterr().out


class Pci:
    """DEVICE_PCI_INFO of versions that have a type for it."""

    domain, bus, device, function = 0, 3, 0, 0


@pytest.mark.parametrize("info", [None, Pci(), "0000:03:00.0"])
def test_openvino_gives_totals_and_addresses(info: Any) -> None:
    core = FakeCore([Card()], None if info is None else lambda card: info)
    (seen,) = openvino_sightings(core)
    assert (seen.number, seen.pci, seen.integrated) == ("GPU.0", "0000:03:00.0", False)
    assert seen.readings == (Reading("OpenVINO", 12 * GiB),)
    assert seen.max_allocation == 4 * GiB - 4096


def test_openvino_that_answers_nothing() -> None:
    class Mute:
        available_devices = ("GPU.0", "NPU")

        def get_property(self, device: str, name: str) -> Any:
            raise RuntimeError("Exception from src/inference")

    (seen,) = openvino_sightings(Mute())
    assert (seen.name, seen.pci, seen.integrated) == ("GPU.0", None, None)
    assert judge(seen.readings).memory is None
    assert openvino_sightings(object()) == []


def test_cards_in_sysfs(tmp_path: Path) -> None:
    cards = [
        Card(pci="0000:83:00.0"),
        Card(device_id=ARC_B70),
        Card(device_id=1, pci="0000:00:02.0"),
    ]
    root = fake_sysfs(tmp_path, cards, monitor="0000:03:00.0")
    other = root / "sys/bus/pci/devices/0000:05:00.0"
    other.mkdir()
    (other / "vendor").write_text("0x8086\n")
    (other / "class").write_text("0x020000\n")  # a network controller
    seen = pci_sightings(root)
    assert [(card.pci, card.name) for card in seen] == [
        ("0000:00:02.0", "Intel GPU 0x0001"),
        ("0000:03:00.0", "Intel Arc Pro B70"),
        ("0000:83:00.0", "Intel Arc B580"),
    ]
    assert [card.integrated for card in seen] == [True, None, None]
    assert [card.display for card in seen] == [False, True, False]
    assert {card.driver for card in seen} == {"xe"}
    assert render_nodes(root) == []


def test_a_card_without_driver_and_a_machine_without_sysfs(tmp_path: Path) -> None:
    (seen,) = pci_sightings(fake_sysfs(tmp_path / "a", [Card()], driver=""))
    assert seen.driver is None
    assert pci_sightings(tmp_path / "nothing") == []


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


MEMINFO = {"proc/meminfo": "MemTotal: 16777216 kB\nMemFree: 1 kB\nMemAvailable: 8388608 kB\n"}


def test_memory_of_the_cpu(tmp_path: Path) -> None:
    assert cpu_reading(write(tmp_path, MEMINFO)) == Reading("/proc/meminfo", 16 * GiB, 8 * GiB)
    assert cpu_reading(tmp_path / "nothing").error is not None


def test_control_groups_of_version_2_limit_it_and_so_do_their_parents(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/pod"
    root = write(
        tmp_path,
        MEMINFO
        | {
            "proc/self/cgroup": "0::/pod/server\n",
            f"{group}/server/memory.max": "max\n",
            f"{group}/server/memory.current": str(1 * GiB),
            f"{group}/memory.max": str(4 * GiB),
            f"{group}/memory.current": str(3 * GiB),
            f"{group}/memory.stat": f"anon 5\ninactive_file {1 * GiB}\n",
        },
    )
    assert cpu_reading(root) == Reading("control group", 4 * GiB, 2 * GiB)


def test_control_groups_of_version_1_limit_it(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        MEMINFO
        | {
            "proc/self/cgroup": "3:cpuset:/\n2:cpu,memory:/a\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": str(2**63 - 4096),
            "sys/fs/cgroup/memory/a/memory.limit_in_bytes": str(512 * MiB),
            "sys/fs/cgroup/memory/a/memory.usage_in_bytes": str(600 * MiB),
        },
    )
    verdict = judge([cpu_reading(root)])
    assert verdict.memory is not None  # nothing left: the total, with a doubt
    assert verdict.memory.total == 512 * MiB
    assert not verdict.free_known


def test_the_hosts_impossible_figure_does_not_stop_a_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """vllm#53990: two B70 with 0 bytes free; torch has no Intel GPU here, so it is a fake."""
    from arcpp.backends import torch_devices

    cards = [Card("Intel(R) Arc(TM) Pro B70 Graphics", ARC_B70, f"0000:{bus}:00.0") for bus in "38"]
    fake = fake_torch(cards)
    fake.device = lambda place: place
    monkeypatch.setitem(sys.modules, "torch", fake)
    monkeypatch.setitem(sys.modules, "pyzes", FakePyzes(cards))  # type: ignore[arg-type]
    place = type("device", (), {"type": "xpu", "index": 1})()
    measured = torch_devices.measure_device(place, torch_devices.host_reading(12 * GiB, 0))
    assert measured.pci == "0000:08:00.0"
    assert measured.verdict.memory is not None
    assert measured.verdict.memory.free == 11 * GiB
    assert measured.verdict.rejected[0].reading.source == HOST
