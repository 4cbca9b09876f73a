"""Reports: what is in them, and that nothing in them names a person or a machine."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.fake_intel import Card, fake_sysfs

from arcpp import doctor
from arcpp.cli import main
from arcpp.doctor import Facts, compatibility, facts
from arcpp.doctor.redact import Redactor
from arcpp.probe import machine
from arcpp.probe.child import CRASHED, OK, Outcome

from .test_doctor_advice import B580, HEALTHY, check, devices, path

DOCS = Path(__file__).parents[2] / "docs"
REDACT = Redactor(user="alice", host="saturn.example.org", home="/home/alice")


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("/home/alice/models/secret", "~/.../secret"),
        ("alice@saturn", "<user>@<host>"),
        ("on saturn.example.org", "on <host>"),
        ("/data/projects/x/torch/lib.py: error", ".../lib.py: error"),
        ("/dev/dri/renderD128", "/dev/dri/renderD128"),
        ("/usr/lib/libze.so.1", "/usr/lib/libze.so.1"),
        ("GPU-8680a056-0000-0000-0300-000000000001", "8680a056..."),
        ("8680a056000000000300000000000001", "8680a056..."),
        ("http://me:word@10.1.2.3/x", "http://<address>/x"),
        ("malice and saturnine stay", "malice and saturnine stay"),
        ("2.13.0+cpu", "2.13.0+cpu"),
        ("0000:03:00.0", "0000:03:00.0"),
    ],
)
def test_redaction(text: str, redacted: str) -> None:
    assert REDACT.text(text) == redacted
    assert REDACT.value({"a": [text, 3, None]}) == {"a": [redacted, 3, None]}


@given(st.text(max_size=80))
def test_no_text_keeps_a_name(text: str) -> None:
    shown = REDACT.text(f"{text} /home/alice/{text}")
    assert "/home/alice" not in shown


def test_short_and_common_names_are_left_in_words() -> None:
    assert Redactor(user="al", host="root", home="/root").text("all roots") == "all roots"


@pytest.fixture
def doctor_says(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    def run(found: Facts, *arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(doctor, "gather", lambda: found)
        code = main(["doctor", *arguments])
        captured = capsys.readouterr()
        assert captured.err == ""
        return code, captured.out

    return run


def with_changes(**changes: Any) -> Facts:
    from dataclasses import replace

    return replace(HEALTHY, **changes)


def test_a_healthy_machine_exits_0(doctor_says: Any) -> None:
    code, out = doctor_says(HEALTHY)
    assert code == 0
    assert max(len(line) for line in out.splitlines()) <= 100
    for part in ("xpu:0", "0000:03:00.0", "Level Zero sysman", "10 of 10", "0.32.0+xpu", "12.00"):
        assert part in out


@pytest.mark.parametrize(("changes", "code"), [({"memlock": 1}, 2), ({"nodes": {}}, 1)])
def test_exit_codes(doctor_says: Any, changes: dict[str, Any], code: int) -> None:
    found = with_changes(**changes)
    assert doctor_says(found)[0] == code
    status, out = doctor_says(found, "--json")
    result = json.loads(out)
    assert (status, result["exit_code"]) == (code, code)
    assert any(finding["level"] != "ok" and finding["do"] for finding in result["findings"])


def test_json_has_everything_in_bytes(doctor_says: Any) -> None:
    _, out = doctor_says(HEALTHY, "--json")
    assert out.count("\n") == 1
    result = json.loads(out)
    assert {
        "arcpp", "exit_code", "devices", "sources", "cards", "system", "packages", "torch_build",
        "vllm_adapter", "link", "copies", "findings",
    } == result.keys()  # fmt: skip
    assert result["devices"][0]["memory"]["free_bytes"] == 11 * 1024**3
    assert result["devices"][0]["uuid"].endswith("...")
    assert result["copies"][0]["to_device_gb_s"] == 12.0
    assert result["copies"][0]["verdict"] == "right"
    assert result["copies"][0]["arcpp_does"].endswith(result["link"])


def test_what_was_not_believed_and_what_failed_is_shown(doctor_says: Any) -> None:
    failed = check(path("xpu:0", wrong=(4096,), to_host_gb_s=None))
    silent = check(outcome=Outcome(CRASHED, {}, "killed by SIGSEGV"), paths=())
    found = with_changes(
        devices=devices(Card(torch_free=0), display=True),
        copies=(failed, silent),
        adapter=Outcome(OK, {"missing": ["x is gone"]}),
        variables={"ZE_AFFINITY_MASK": "[0]"},
    )
    code, out = doctor_says(found)
    assert code == 1
    for part in (
        "not used: gives 0 bytes free", "corrupt", "9 of 10", "killed by SIGSEGV", "x is gone",
        "[0]", "monitor", "-> ",
    ):  # fmt: skip
        assert part in out


def test_the_reports_are_redacted(
    doctor_says: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "someone"))
    monkeypatch.setenv("USER", "someone")
    said = f"OSError: {'long ' * 12}{tmp_path}/someone/driver.so by someone"
    outcome = Outcome(CRASHED, {}, said)
    for arguments in ((), ("--json",)):
        _, out = doctor_says(with_changes(sources={"torch": outcome}), *arguments)
        assert "someone" not in out
        assert str(tmp_path) not in out.replace("\n", "").replace(" ", "")


def test_facts_of_a_machine_in_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = fake_sysfs(tmp_path, [B580])
    for name in ("dev/dri/renderD128", "dev/dxg", "usr/lib64/libze_loader.so.1.2"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    status = root / "var/lib/dpkg/status"
    status.parent.mkdir(parents=True)
    status.write_text(
        "Package: libze1\nStatus: install ok installed\nVersion: 1.24\n\n"
        "Package: level-zero\nStatus: deinstall ok config-files\nVersion: 1.0\n\n"
        "Package: bash\nStatus: install ok installed\nDescription: x\n more: y\n"
    )
    monkeypatch.setattr(machine, "SOURCES", {})
    monkeypatch.setattr(facts, "_ADAPTER", "arcpp.backends.levelzero_devices")
    monkeypatch.setenv("ZE_AFFINITY_MASK", "0")
    found = facts.gather(root)
    assert [card.driver for card in found.cards] == ["xe"]
    assert [device.pci for device in found.devices] == ["0000:03:00.0"]
    assert found.nodes == {"renderD128": os.access(root, os.W_OK)}
    assert found.libraries["libze_loader.so.1"]
    assert found.driver_packages == {"libze1": "1.24"}
    assert found.variables["ZE_AFFINITY_MASK"] == "0"
    assert found.wsl
    assert found.shm_total is None
    assert found.copies == ()
    assert found.packages["arcpp"]


def test_settings_that_no_host_would_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARCPP_LINK", "p2p")
    assert facts._settings()[0].link == "p2p"
    monkeypatch.setenv("ARCPP_LINK", "rings")
    settings, error = facts._settings()
    assert settings.link is None
    assert "is none of ring, gloo, p2p" in str(error)


def test_the_compatibility_page_holds_the_table() -> None:
    assert compatibility.table() in (DOCS / "compatibility.md").read_text(encoding="utf-8")


def test_the_adapter_and_the_table_mean_the_same_versions() -> None:
    from arcpp_vllm import compat

    low, high = (part.lstrip(">=<") for part in compat.SUPPORTED.split(","))
    rows = [row for row in compatibility.TABLE if row.package == "vllm"]
    assert compatibility.release_of(low) == min(row.low for row in rows)
    top = max(row.high for row in rows)
    assert compatibility.release_of(high) == (top[0], top[1] + 1)


@pytest.mark.parametrize(
    ("package", "version", "known"),
    [
        ("vllm", "0.32.0+cpu", True),
        ("vllm", "0.30.1", True),
        ("vllm", "0.34.0", False),
        ("vllm", "0.29.9", False),
        ("vllm", "nightly", False),
        ("openvino", "2026.4.1-22982", True),
        ("openvino", "2025.3.0", False),
    ],
)
def test_known_versions(package: str, version: str, known: bool) -> None:
    assert compatibility.known(package, version) is known


def test_the_doctor_page_names_every_subject() -> None:
    from arcpp.doctor import advise

    page = (DOCS / "doctor.md").read_text(encoding="utf-8")
    for finding in advise(HEALTHY):
        assert f"| {finding.subject} |" in page


def test_the_command_line_imports_no_runtime_for_doctor() -> None:
    import subprocess
    import sys

    script = (
        "import sys; from arcpp.doctor import gather; import arcpp.doctor.report; "
        "print([m for m in ('torch', 'vllm', 'openvino', 'rich') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
