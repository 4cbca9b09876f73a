"""``arcpp bench hop``: words, ratios and the table; two processes that end, whatever happens."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from arcpp.bench import HopRequest, hop_request, hops, pair
from arcpp.bench.hops import Figure, HopReport, measure_hops, with_ratios
from arcpp.bench.report import hop_json, hop_text, shown_size
from arcpp.bench.request import SIZES
from arcpp.cli import bench, main
from arcpp.errors import BadInput, BenchFailed
from arcpp.probe import FoundDevice, judge
from arcpp.probe.machine import Machine
from arcpp.units import KiB, MiB


def card(number: str | None, *, integrated: bool = False) -> FoundDevice:
    return FoundDevice(
        name="Intel Arc", kind="xpu", pci=None, uuid=None, integrated=integrated, display=False,
        driver=None, max_allocation=None, numbers={} if number is None else {"torch": number},
        verdict=judge([]),
    )  # fmt: skip


def request_of(devices: list[str], cards: list[FoundDevice], **words: Any) -> HopRequest:
    words = {"sizes": [], "ways": [], "rounds": 5} | words
    return hop_request(devices, probe=lambda: cards, **words)


@pytest.mark.parametrize(
    ("written", "cards", "ends"),
    [
        ([], [], ("cpu", "cpu")),
        ([], ["xpu:0"], ("xpu:0", "xpu:0")),
        ([], ["xpu:0", "xpu:1", "xpu:2"], ("xpu:0", "xpu:1")),
        ([], [None], ("cpu", "cpu")),
        (["xpu:1"], ["xpu:0", "xpu:1"], ("xpu:1", "xpu:1")),
        (["XPU:1", "cpu"], ["xpu:0", "xpu:1"], ("xpu:1", "cpu")),
    ],
)
def test_which_ends(written: list[str], cards: list[str | None], ends: tuple[str, str]) -> None:
    assert request_of(written, [card(number) for number in cards]).devices == ends


def test_an_integrated_gpu_is_used_only_when_named() -> None:
    cards = [card("xpu:0", integrated=True), card("xpu:1")]
    assert request_of([], cards).devices == ("xpu:1", "xpu:1")
    assert request_of(["xpu:0", "xpu:1"], cards).devices == ("xpu:0", "xpu:1")


def test_the_processor_alone_asks_no_driver() -> None:
    def fail() -> list[FoundDevice]:
        raise AssertionError("probed")

    found = hop_request(["cpu"], ["1KiB", "3", "1024"], ["gloo", "ring"], 2, fail)
    assert found == HopRequest(("cpu", "cpu"), (3, 1024), ("raw copies", "gloo", "ring"), 2)
    assert hop_request(["cpu"], [], [], 5, fail).sizes == SIZES


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ({"devices": ["GPU.1"]}, "is not a device of torch"),
        ({"devices": ["B580"]}, "is not a device of torch"),
        ({"devices": ["xpu:7"]}, "is no device torch finds here: xpu:0, cpu"),
        ({"devices": ["cpu"] * 3}, "is more than the two ends of a hop"),
        ({"sizes": ["much"]}, "is not a size"),
        ({"sizes": ["0"]}, "is not between 1 byte and 1 GiB"),
        ({"sizes": ["2GiB"]}, "is not between 1 byte and 1 GiB"),
        ({"ways": ["rings"]}, "did you mean ring?"),
        ({"rounds": 0}, "is not between 1 and 1000"),
    ],
)
def test_bad_words_are_one_line(words: dict[str, Any], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        request_of(words.pop("devices", []), [card("xpu:0")], **words)


FIGURES = with_ratios(
    [
        Figure(way, size, one_way * size / KiB, rate)
        for size in (20 * KiB, 40 * MiB + 1)
        for way, one_way, rate in (
            ("raw copies", 1e-6, 4e9), ("ring, verified", 2e-6, 3e9), ("gloo", 8e-6, 1e9),
        )
    ]
)  # fmt: skip
REPORT = HopReport(
    HopRequest(("xpu:0", "xpu:1")), FIGURES,
    {"ring, verified": {"pinning": "registered"}, "p2p": {"notes": ["not from card to card"]}},
    ("Intel(R) Arc(TM) B580", "Intel(R) Arc(TM) A770"), "2.13.0",
)  # fmt: skip


def test_ratios_are_those_of_one_size() -> None:
    ring = FIGURES[4]
    assert ring.size == 40 * MiB + 1
    ratios = (ring.to_raw, ring.of_raw_rate, ring.to_gloo, ring.of_gloo_rate)
    assert ratios == pytest.approx((2, 0.75, 0.25, 3))
    alone = with_ratios([Figure("ring", 1, 1.0, 1.0)])[0]
    assert (alone.to_raw, alone.of_gloo_rate) == (None, None)


def test_the_table_has_eighty_columns() -> None:
    lines = hop_text(REPORT).splitlines()
    assert max(map(len, lines)) <= 80
    assert "xpu:0 (Intel(R) Arc(TM) B580)" in lines[0]
    assert "p2p: not from card to card" in lines
    row = next(line for line in lines if "ring, verified" in line)
    assert row.split() == ["ring,", "verified", "40.0", "3.00", "2.00", "75%", "4.00", "3.00"]


def test_json_is_in_seconds_and_bytes() -> None:
    said = json.loads(json.dumps(hop_json(REPORT)))
    assert [device["name"] for device in said["devices"]] == ["xpu:0", "xpu:1"]
    assert said["figures"][1] == pytest.approx(
        {
            "way": "ring, verified", "size_bytes": 20 * KiB, "one_way_s": 40e-6,
            "bytes_per_s": 3e9, "times_raw_copies": 2, "share_of_raw_rate": 0.75,
            "times_sooner_than_gloo": 4, "times_rate_of_gloo": 3,
        }
    )  # fmt: skip


@pytest.mark.parametrize(
    ("size", "shown"), [(1, "1 B"), (20 * KiB, "20 KiB"), (MiB, "1 MiB"), (MiB + 1, "1048577 B")]
)
def test_payloads_are_whole_numbers(size: int, shown: str) -> None:
    assert shown_size(size) == shown


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The module both processes run instead of ours; the test writes it."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / "ends_under_test.py"


def lines(patience_s: float = 60) -> list[dict[str, Any]]:
    with pair.Pair({}, "ends_under_test") as started:
        return list(started.lines(patience_s))


def left(module: Path) -> list[str]:
    folders = [path.name for path in module.parent.glob("arcpp-bench-*")]
    running = [" ".join(p.info["cmdline"] or []) for p in psutil.process_iter(["cmdline"])]
    return folders + [words for words in running if "ends_under_test" in words]


def test_lines_of_rank_0_arrive(module: Path) -> None:
    module.write_text("import sys\nprint('{\"rank\": %s}' % sys.argv[1])")
    assert lines() == [{"rank": 0}]
    assert not left(module)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("import os; os.kill(os.getpid(), 11)", "failed: killed by SIGSEGV"),
        ("raise RuntimeError('no driver')", "failed: exit code 1: RuntimeError: no driver"),
        ("if sys.argv[1] == '1': raise RuntimeError('device lost')\ntime.sleep(600)",
         "end 1 failed: exit code 1: RuntimeError: device lost"),
        ("if sys.argv[1] == '0': raise ValueError('PeerLost')\nsys.exit('out of memory')",
         "end 1 failed: exit code 1: out of memory"),
        ("if sys.argv[1] == '1': time.sleep(600)", "ended on one side only"),
        ("print('[1]')", r"said '\[1\]'"),
        ("time.sleep(600)", "said nothing for 1 s"),
    ],
)  # fmt: skip
def test_what_goes_wrong_is_one_line_and_leaves_nothing(module: Path, body: str, says: str) -> None:
    module.write_text(f"import sys, time\n{body}")
    with pytest.raises(BenchFailed, match=says):
        lines(1 if "nothing" in says else 60)
    assert not left(module)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL])
def test_ctrl_c_and_kill_leave_no_process(module: Path, signum: int) -> None:
    pytest.importorskip("torch")
    module.write_text(
        "from arcpp.backends import hop_bench\nhop_bench._end_with_input()\n"
        "import time\nprint('{\"ready\": 1}', flush=True)\ntime.sleep(600)"
    )
    code = (
        "from arcpp.bench.pair import Pair\n"
        "with Pair({}, 'ends_under_test') as ends:\n"
        "    for line in ends.lines(600): print(line, flush=True)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        env=os.environ | {"TMPDIR": str(module.parent)},
    ) as started:  # fmt: skip
        assert started.stdout is not None
        assert started.stdout.readline()
        started.send_signal(signum)
    deadline = time.monotonic() + 30
    while (here := left(module)) and time.monotonic() < deadline:
        if signum == signal.SIGKILL and here[0].startswith("arcpp-bench-") and len(here) == 1:
            break  # its folder is all that a killed process leaves
        time.sleep(0.1)
    assert len(here) == (signum == signal.SIGKILL)


def test_a_way_that_is_not_to_be_had(module: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module.write_text('print(\'{"ways": ["raw copies"]}\', flush=True)\nimport time; time.sleep(9)')
    monkeypatch.setattr(hops, "Pair", lambda wanted: pair.Pair(wanted, "ends_under_test"))
    with pytest.raises(BadInput, match="nccl' is not to be had between cpu and cpu"):
        measure_hops(HopRequest(("cpu", "cpu"), ways=("raw copies", "nccl")))


def test_without_torch(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(hops, "installed", lambda package: False)
    monkeypatch.setattr(bench, "this_machine", lambda: Machine(()))
    assert main(["bench", "hop"]) == 1
    said = capsys.readouterr()
    assert said.err.count("\n") == 1
    assert "needs torch" in said.err
    assert said.out == ""


def test_a_measurement_on_the_processor(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    words = ["--size", "20KiB", "--size", "1MiB", "--rounds", "1", "--way", "ring", "--way", "gloo"]
    assert main(["bench", "hop", "--device", "cpu", *words, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [(each["way"], each["size_bytes"]) for each in said["figures"]] == [
        (way, size) for size in (20 * KiB, MiB) for way in ("raw copies", "ring", "gloo")
    ]
    assert all(each["one_way_s"] > 0 and each["bytes_per_s"] > 0 for each in said["figures"])
    assert said["links"]["ring"]["kind"] == "ring"
