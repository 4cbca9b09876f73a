"""Explanations, pictures, tables and comparisons with logs."""

from __future__ import annotations

import json
import os
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arcpp import startlog
from arcpp.cli import main
from arcpp.errors import BadInput
from arcpp.explain import alternatives, explain_lines
from arcpp.fromlog import compare, rows_text
from arcpp.picture import plan_svg
from arcpp.planner import PlanRequest, make_plan
from arcpp.profile import load_profile
from arcpp.report import plan_text
from arcpp.startlog import StartLog, parse_log

from .planner_models import B70, B580, BUNDLED, QWEN35_27B, write_config

DATA = Path(__file__).parent / "data"

# Lines of a real start of vLLM 0.32.0 on two CPU stages, and of the public B70 + B580 report,
# whose weights lines are filled in from the plan.
CPU_LOG = """\
(Worker_PP0 pid=8444) INFO 11-30 18:08:22 [interface.py:1096] Setting attention block size to 256 \
tokens to ensure that attention page size is >= mamba page size.
(Worker_PP0 pid=8444) INFO 11-30 18:08:23 [cpu_worker.py:260] Explicitly set (0.06/8.96) GiB for \
KV cache on node 0.
(Worker_PP1 pid=8445) INFO 11-30 18:08:23 [cpu_worker.py:260] Explicitly set (0.06/8.96) GiB for \
KV cache on node 0.
(EngineCore pid=8432) INFO 11-30 18:08:23 [kv_cache_utils.py:2327] CPU KV cache size: 74,898 \
tokens, Maximum concurrency for 2,048 tokens per request: 36.57x
"""
XPU_LOG = """\
(Worker_PP0 pid=1) INFO [gpu_model_runner.py:5188] Model loading took 24.52 GiB memory and 9.1 s
(Worker_PP1 pid=2) INFO [gpu_model_runner.py:5188] Model loading took 7.01 GiB memory and 9.1 s
(Worker_PP0 pid=1) INFO [gpu_worker.py:560] Available KV cache memory: 0.58 GiB
(Worker_PP1 pid=2) INFO [gpu_worker.py:560] Available KV cache memory: 4.10 GiB
(EngineCore pid=3) INFO [kv_cache_utils.py:1744] GPU KV cache size: 10,922 tokens
(EngineCore pid=3) INFO [kv_cache_utils.py:1749] Maximum concurrency for 8,192 tokens per \
request: 1.33x
"""


def test_log_of_a_cpu_start() -> None:
    log = parse_log(CPU_LOG.splitlines())
    assert log.available_gib == {0: 0.06, 1: 0.06}
    assert (log.kv_cache_tokens, log.max_model_len, log.block_tokens) == (74898, 2048, 256)


def test_log_of_an_xpu_start_against_its_plan(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "start.log"
    path.write_text(XPU_LOG, encoding="utf-8")
    arguments = [
        "plan", str(write_config(tmp_path, QWEN35_27B)), "--weights-dtype", "fp8",
        "--device", "B70=31023MiB", "--device", "B580=11605MiB", "--host", "vllm@0.23",
        "--partition", "60,4", "--kv-cache-dtype", "fp8", "--from-log", str(path),
    ]  # fmt: skip
    assert main([*arguments, "--json"]) == 0
    rows = {(r["name"], r["rank"]): r for r in json.loads(capsys.readouterr().out)["log"]}
    assert rows["weights", 0]["logged"] == 24.52
    assert rows["weights", 0]["predicted"] == pytest.approx(24.52, rel=0.01)
    assert rows["weights", 1]["predicted"] == pytest.approx(7.01, rel=0.01)
    assert rows["available KV", 1]["logged"] == 4.10
    exact = rows["KV cache from the logged memory", None]
    assert exact["predicted"] == exact["logged"] == 10922
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert "from the logged memory" in out
    assert max(len(line) for line in out.splitlines()) <= 80


# Starts of vLLM 0.32.0 on one memory node of 23.54 GiB, --gpu-memory-utilization 0.3, two stages:
# under arcpp they share that, under the stock executor each takes all of it.
@pytest.mark.parametrize(
    ("executor", "available", "tokens", "within"),
    [("arcpp", 2.89, 2_421_350, 0), ("stock", 6.41, 5_378_252, 1e-3)],
)
def test_logs_of_two_stages_on_one_memory_node(
    capsys: pytest.CaptureFixture[str], executor: str, available: float, tokens: int, within: float
) -> None:
    path = DATA / f"vllm-0.32-cpu-pp2-{executor}.log"
    node = ["--device", "cpu=23.54GiB:20.9GiB"]
    arguments = [
        "plan", str(BUNDLED), *node, *node, "--gpu-memory-utilization", "0.3", "--dtype",
        "bfloat16", "--max-num-batched-tokens", "256", "--max-num-seqs", "8", "--host",
        "vllm@0.32.0", "--from-log", str(path), "--json",
    ]  # fmt: skip
    assert main(arguments) == 0
    rows = {(r["name"], r["rank"]): r for r in json.loads(capsys.readouterr().out)["log"]}
    for rank in (0, 1):
        row = rows["available KV", rank]
        assert row["logged"] == available
        assert row["predicted"] == pytest.approx(available, rel=0.01)
    assert rows["KV cache", None]["logged"] == tokens
    assert rows["KV cache", None]["predicted"] == pytest.approx(tokens, rel=0.01)
    logged = rows["KV cache from the logged memory", None]
    assert logged["predicted"] == pytest.approx(tokens, rel=within)  # the stock log rounds to MiB
    assert rows["block size", None]["predicted"] == rows["block size", None]["logged"] == 256


def test_the_exact_share_is_read_whatever_stands_before_it() -> None:
    log = parse_log(
        [
            "(Worker pid=1) INFO [cpu_worker.py:260] Auto set (6.41/23.54) GiB for KV cache on "
            "node 0, with 7.06 GiB requested memory for the worker. 0.65 GiB memory was consumed "
            "by non-kv usages.",
            "arcpp: stage 0: Available KV cache memory: 2.89 GiB (3099328512 bytes) of 6.41 GiB, "
            "by the plan",
        ]
    )
    assert log.kv_memory == (3_099_328_512,)
    assert (log.consumed_gib, log.node_gib) == ({0: 0.65}, 23.54)


def test_log_without_figures_or_file_is_bad_input(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "start.log"
    path.write_text("nothing here\n", encoding="utf-8")
    for name in (path, tmp_path / "missing.log", tmp_path):
        code = main(["plan", str(BUNDLED), "--device", "A=1GiB", "--from-log", str(name)])
        assert code == 1
        assert capsys.readouterr().err.count("\n") == 1


def test_a_log_is_a_plain_file_and_bounded(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What never ends is not opened; a file is counted as it is read, whatever its size says."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "log").write_text(CPU_LOG, encoding="utf-8")
    (tmp_path / "link").symlink_to(tmp_path / "log")
    command = ["plan", str(BUNDLED), "--device", "cpu=8GiB", "--device", "cpu=8GiB", "--from-log"]
    for name in (tmp_path / "pipe", Path("/dev/zero"), tmp_path):
        assert main([*command, str(name)]) == 1
        assert "is not a plain file" in capsys.readouterr().err
    assert main([*command, str(tmp_path / "link")]) == 0
    monkeypatch.setattr(startlog, "_LIMIT", len(CPU_LOG) - 1)
    assert main([*command, str(tmp_path / "log")]) == 1
    assert "is too large" in capsys.readouterr().err


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text(max_size=120), max_size=20))
def test_any_text_as_a_log(lines: list[str]) -> None:
    parse_log(["Available KV cache memory: 1.0 GiB", *lines])


def test_rows_show_how_far_off_they_are() -> None:
    plan = make_plan(load_profile(BUNDLED), [B70, B580], PlanRequest())
    log = StartLog(weights_gib={0: 0.0}, available_gib={1: 1.0}, kv_cache_tokens=99)
    times = plan.kv_cache_tokens / 99
    text = rows_text(compare(plan, log, None))
    assert len(text) == 4
    assert text[1].rstrip().endswith("-")
    assert f"x{times:,.0f}" in text[3]


def test_explanation_moves_each_cut_both_ways_and_finds_nothing_better() -> None:
    profile = load_profile(BUNDLED)
    request = PlanRequest(max_num_batched_tokens=64, max_num_seqs=4)
    plan = make_plan(profile, [B70, B580], request)
    moves = alternatives(profile, [B70, B580], request, plan)
    assert {move.moved for move in moves} <= {1, -1}
    for move in moves:
        if move.num_blocks is not None:
            assert move.num_blocks <= plan.num_blocks
            same = PlanRequest(
                max_num_batched_tokens=64, max_num_seqs=4, partition=move.partition.counts
            )
            assert make_plan(profile, [B70, B580], same).num_blocks == move.num_blocks
    lines = explain_lines(plan, moves)
    assert f"stage {plan.binding_stage}" in lines[0]
    assert len(lines) == 3 + len(moves)


@pytest.mark.parametrize("more", [(), ("--explain",), ("--reorder", "--explain")])
def test_everything_that_is_printed_is_at_most_80_columns_wide(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, more: tuple[str, ...]
) -> None:
    command = ["plan", str(write_config(tmp_path, QWEN35_27B)), "--weights-dtype", "int4"]
    cards = ["--device", "A770=31GiB@400", "--device", "b=24GiB@300", "--device", "c=12GiB@500"]
    assert main([*command, *cards, *more]) == 0
    out = capsys.readouterr().out
    assert max(len(line) for line in out.splitlines()) <= 80
    assert ("binds" in out) is ("--explain" in more)


def test_explanation_says_why_a_neighbour_does_not_fit(tmp_path: Path) -> None:
    profile = load_profile(write_config(tmp_path, QWEN35_27B), weights_dtype="fp8")
    longest = make_plan(profile, [B70, B580], PlanRequest(kv_cache_dtype="fp8")).max_model_len
    request = PlanRequest(max_model_len=longest, kv_cache_dtype="fp8")
    plan = make_plan(profile, [B70, B580], request)
    moves = alternatives(profile, [B70, B580], request, plan)
    refused = [move for move in moves if move.reason is not None]
    assert refused
    assert all("lacks" in str(move.reason) for move in refused)
    assert all(move.to_json()["fits"] is False for move in refused)


def test_explanation_asks_whoever_planned() -> None:
    profile = load_profile(BUNDLED)
    plan, asked = make_plan(profile, [B70, B580], PlanRequest()), []

    def planner(profile: Any, devices: Any, request: PlanRequest) -> Any:
        asked.append(request.partition)
        raise BadInput("mine", request.partition, "is nothing I plan")

    moves = alternatives(profile, [B70, B580], PlanRequest(), plan, planner)
    assert asked == [move.partition.counts for move in moves]
    assert asked
    assert all("is nothing I plan" in str(move.reason) for move in moves)


def test_picture_is_an_svg_with_a_bar_per_card_and_nothing_from_the_network() -> None:
    profile = load_profile(BUNDLED)
    text = plan_svg(make_plan(profile, [B70, B580], PlanRequest()))
    root = ET.fromstring(text)
    assert root.tag.endswith("svg")
    shown = "".join(root.itertext()).replace("\xa0", " ")
    assert "B70: layers" in shown
    assert "B580: layers" in shown
    assert "unused" in shown
    assert "url(http" not in text
    assert 'url("http' not in text
    assert plan_svg(make_plan(profile, [B70, B580], PlanRequest())) == text


def test_command_writes_the_picture(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    target = tmp_path / "plan.svg"
    arguments = ["plan", str(BUNDLED), "--device", "A=1GiB", "--explain", "--svg"]
    assert main([*arguments, str(target)]) == 0
    assert target.read_text(encoding="utf-8").startswith("<svg")
    assert main([*arguments, str(tmp_path / "no" / "folder.svg")]) == 1
    assert "binds" in capsys.readouterr().out


@pytest.mark.parametrize("stages", [1, 2, 3, 8])
def test_table_is_at_most_80_columns_wide(stages: int) -> None:
    profile = load_profile(BUNDLED)
    names = ["Intel Arc Pro B70", "xpu:1", "a", "b", "c", "d", "e", "f"]
    devices = [type(B70)(names[i], B70.memory, 600.0) for i in range(stages)]
    text = plan_text(make_plan(profile, devices, PlanRequest()))
    assert max(len(line) for line in text.splitlines()) <= 80
    assert text.count("\n") >= stages


@pytest.mark.parametrize("name", ["[/]", "[red]card", "[link]", "\\[b]", "日本語カード", "a,b"])
def test_a_device_is_shown_by_the_name_it_was_given(
    capsys: pytest.CaptureFixture[str], name: str, tmp_path: Path
) -> None:
    """Whatever rich would make of it; in tables of plans, refusals and pictures."""
    arguments = ["plan", str(BUNDLED), "--device", f"{name}=1GiB", "--device", "b=1GiB"]
    assert main([*arguments, "--explain", "--svg", str(tmp_path / "x.svg")]) == 0
    assert name in capsys.readouterr().out
    assert name in "".join(ET.parse(tmp_path / "x.svg").getroot().itertext())
    assert main([*arguments, "--margin", "0.99GiB"]) == 2
    assert name in capsys.readouterr().out


def test_openvino_counts_state_tables_and_the_allocation_cap(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def plan(*arguments: str) -> dict[str, Any]:
        command = ["plan", str(write_config(tmp_path, QWEN35_27B)), "--weights-dtype", "int4"]
        assert main([*command, "--host", "openvino", "--json", *arguments]) == 0
        result = json.loads(capsys.readouterr().out)
        assert isinstance(result, dict)
        return result

    cards = ["--device", "GPU.0=15.11GiB", "--device", "GPU.1=15.11GiB"]
    result = plan(*cards)
    assert result["host"] == "openvino"
    assert result["block_tokens"] == 16
    assert result["vllm_args"] == []
    one = 10240 * 4 * 4 + 48 * 128 * 128 * 4
    states = sum(stage["state_bytes"] for stage in result["stages"])
    assert states == 48 * one * (result["max_num_seqs"] + 1)
    more = plan(*cards, "--max-num-seqs", "8")
    assert sum(stage["state_bytes"] for stage in more["stages"]) == 48 * one * 9
    assert more["kv_cache_tokens"] < result["kv_cache_tokens"]
    compact = plan(*cards, "--kv-cache-dtype", "u4")
    assert compact["kv_cache_tokens"] > 1.7 * result["kv_cache_tokens"]
    huge = ["--device", "GPU.0=400GiB"]
    capped, free = plan(*huge), plan(*huge, "--large-allocations")
    assert capped["num_blocks"] < free["num_blocks"]
    host = plan("--device", "GPU.0=15.11GiB", "--device", "CPU=64GiB")
    assert len(host["partition"]) == 2
