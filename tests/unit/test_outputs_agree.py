"""The table, the explanation and the picture say what the JSON of the same command says."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from arcpp.cli import main
from arcpp.units import GiB

from .planner_models import BUNDLED, LLAMA_70B, QWEN35_27B, write_config

LONG = "Intel(R) Arc(TM) Pro B70 Graphics [0xe223] in the second slot"
EIGHT = [part for i in range(8) for part in ("--device", f"{LONG} {i}=40GiB:3{i}GiB@{400 + i}")]
COMMANDS: dict[str, tuple[dict[str, Any] | None, list[str]]] = {
    "one card": (None, ["--device", "a=1GiB"]),
    "bandwidths": (None, ["--device", "a=1GiB@400", "--device", "b=512MiB:400MiB@200"]),
    "one card twice": (None, ["--device", "a=1GiB", "--device", "a=1GiB"]),
    "reserve": (None, ["--device", "a=1GiB", "--device", "b=1GiB", "--reserve", "a=100MiB"]),
    "eight long names": (LLAMA_70B, ["--weights-dtype", "int4", *EIGHT]),
    "eight layers": (None, EIGHT),
    "given": (None, ["--device", "a=1GiB", "--device", "b=1GiB", "--device", "c=1GiB",
                     "--partition", "5,2,1"]),
    "memory of a log": (None, ["--kv-memory", "300MiB,200MiB", "--max-model-len", "4096"]),
    "openvino": (QWEN35_27B, ["--weights-dtype", "int4", "--host", "openvino",
                              "--device", "GPU.0=16GiB", "--device", "CPU=64GiB"]),
    "larger than there are": (QWEN35_27B, ["--device", "a=1000TiB", "--device", "b=1024TiB"]),
}  # fmt: skip
COLUMNS = ["weights", "KV", "state", "work", "margin", "total", "free", "unused"]


@pytest.fixture(params=COMMANDS)
def command(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    config, options = COMMANDS[request.param]
    model = BUNDLED if config is None else write_config(tmp_path, config)
    return ["plan", str(model), "--explain", *options]


def answers(command: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[dict[str, Any], str]:
    assert main([*command, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert main(command) == 0
    return said, capsys.readouterr().out


def sizes(stage: dict[str, Any]) -> list[int]:
    margin = stage["margin_bytes"] + stage["reserve_bytes"]
    names = ("weights", "kv", "state", "workspace")
    rest = [stage[f"{name}_bytes"] for name in ("total", "free", "unused")]
    return [*(stage[f"{name}_bytes"] for name in names), margin, *rest]


def test_the_table_says_what_json_says(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    said, out = answers(command, capsys)
    lines = out.splitlines()
    assert max(map(len, lines)) <= 80
    assert "\N{HORIZONTAL ELLIPSIS}" not in out, "a number was cut"
    assert lines[0].split() == ["stage", "device", "layers", *COLUMNS]
    rows = [line.split() for line in lines if re.match(r"\d+ +\S.* \d+-\d+ +[\d.-]", line)]
    assert len(rows) == len(said["stages"])
    for index, (row, stage) in enumerate(zip(rows, said["stages"], strict=True)):
        assert row[0] == str(index)
        low, high = stage["layers"]
        assert row[-9] == f"{low}-{high - 1}"
        for shown, size in zip(row[-8:], sizes(stage), strict=True):
            digits = len(shown.partition(".")[2])
            assert shown == "-" or float(shown) == round(size / GiB, digits or None)
    text = " ".join(out.split())
    partition = ",".join(map(str, said["partition"]))
    for words in (
        f"host {said['host']}, partition {partition} ",
        f"longest request {said['max_model_len']:,} tokens; ",
        f"KV cache {said['kv_cache_tokens']:,} tokens at max-model-len "
        f"{said['effective_max_model_len']:,} ",
        f"{said['num_blocks']:,} blocks of {said['block_tokens']} tokens",
        f"at most {said['max_num_seqs']} requests at once",
        f"binding: stage {said['binding_stage']} (",
        *(warning for warning in said["warnings"]),
    ):
        assert " ".join(words.split()) in text
    limit = said.get("decode_tokens_per_s_limit")
    assert (f"decode limit {limit} tokens/s" in text) is (limit is not None)


def test_the_explanation_says_what_json_says(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    said, out = answers(command, capsys)
    text = " ".join(out.split())
    binding = said["stages"][said["binding_stage"]]
    held = f"{binding['bytes_per_block']:,} bytes a block are {said['num_blocks']:,} blocks"
    assert f"stage {said['binding_stage']} ({binding['device']}) binds: " in text
    assert held in text
    assert text.count("1 layer on stage ") == len(said["explain"])
    counts = said["partition"]
    possible = [
        (cut, moved)
        for cut in range(len(counts) - 1)
        for moved in (1, -1)
        if counts[cut + 1 if moved > 0 else cut] > 1
    ]
    assert [(other["cut"], other["moved"]) for other in said["explain"]] == possible
    for other in said["explain"]:
        sign, partition = "+" if other["moved"] > 0 else "-", ",".join(map(str, other["partition"]))
        begin = f"{sign}1 layer on stage {other['cut']} ({partition}): "
        end = f"does not fit, {other['reason']}"
        if other["fits"]:
            end = f"{other['kv_cache_tokens']:,} KV tokens, longest request "
            end += f"{other['max_model_len']:,}"
            assert "--partition" in command or other["num_blocks"] <= said["num_blocks"]
        assert begin + end in text


def test_the_picture_says_what_json_says(
    command: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    said, _ = answers([*command, "--svg", str(tmp_path / "x.svg")], capsys)
    root = ET.parse(tmp_path / "x.svg").getroot()
    shown = "".join(root.itertext()).replace("\xa0", " ")
    by_device: dict[str, list[dict[str, Any]]] = {}
    for stage in said["stages"]:
        by_device.setdefault(stage["device"], []).append(stage)
    for device, stages in by_device.items():
        layers = ", ".join(f"{low}-{high - 1}" for low, high in (s["layers"] for s in stages))
        first = stages[0]
        known = first["memory_source"] != "not given"
        at = shown.index(f"{device}: layers {layers}{', ' if known else ''}")
        parts = dict(re.findall(r"\u25a0 (\w+) +([\d.]+) GiB", shown[at:])[: 6 if known else 4])
        right = {
            "weights": sum(stage["weights_bytes"] for stage in stages),
            "KV": sum(stage["kv_bytes"] for stage in stages),
            "state": sum(stage["state_bytes"] for stage in stages),
            "workspace": sum(stage["workspace_bytes"] for stage in stages),
        }
        if known:
            right["margin"] = first["margin_bytes"] + first["reserve_bytes"]
            right["unused"] = max(0, first["unused_bytes"])
        assert parts == {name: f"{size / GiB:.2f}" for name, size in right.items()}
    assert f"{said['kv_cache_tokens']:,} KV tokens" in shown
