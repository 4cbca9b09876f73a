"""What somebody meets who has read little: help, a hub name, a card named twice, a folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from arcpp.cli import main

ROOT = Path(__file__).resolve().parents[2]
MODEL = str(ROOT / "tests" / "models" / "kjv-hybrid-8l" / "hf")


@pytest.mark.parametrize("arguments", [[], ["bench"]])
def test_no_command_is_help_in_lines(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 1
    text = capsys.readouterr().err
    assert text.startswith("Usage: arcpp")
    assert len(text.splitlines()) > 5


def test_a_name_on_a_hub_is_to_be_fetched(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "Qwen/Qwen3-8B", "--device", "a=16GB"]) == 1
    line = capsys.readouterr().err
    assert "(a name on a hub? fetch it first: hf download Qwen/Qwen3-8B --local-dir DIR)" in line
    assert main(["plan", "/not/here", "--device", "a=16GB"]) == 1
    assert "hub" not in capsys.readouterr().err


@pytest.mark.parametrize(("name", "warned"), [("B580", True), ("cpu", False)])
def test_a_card_that_is_named_twice_is_one_card(
    name: str, warned: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    device = f"{name}=11605MiB"
    assert main(["plan", MODEL, "--device", device, "--device", device]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert ("B580 is named 2 times: its stages share one card" in said) is warned


def test_set_up_leaves_a_folder_alone_that_is_no_environment(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("kept")
    done = subprocess.run(
        [sys.executable, str(ROOT / ".ci" / "setup.py"), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize("encoding", ["foo", "utf-7", "shift_jis"])
def test_an_ir_of_an_unknown_encoding_is_one_line(
    encoding: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text((Path(MODEL) / "config.json").read_text())
    xml = tmp_path / "openvino_language_model.xml"
    xml.write_text(f'<?xml version="1.0" encoding="{encoding}"?><net/>')
    xml.with_suffix(".bin").write_bytes(b"")
    assert main(["plan", str(tmp_path), "--device", "a=16GB"]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_shard_of_an_impossible_name_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text((Path(MODEL) / "config.json").read_text())
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "x" * 5000}}))
    assert main(["plan", str(tmp_path), "--device", "a=16GB"]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize(
    ("to", "encoding", "wanted"),
    [("/dev/full", "utf-8", "No space left"), (None, "latin-1", "cannot write")],
)
def test_an_answer_that_cannot_be_written_is_one_line(
    to: str | None, encoding: str, wanted: str
) -> None:
    command = [sys.executable, "-m", "arcpp", "plan", MODEL, "--device", "\N{SNOWMAN}=16GB"]
    with open(to or os.devnull, "w") as out:
        done = subprocess.run(
            command,
            stdout=out if to else subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONIOENCODING": encoding},
            text=True,
            encoding=encoding,
            check=False,
        )
    assert done.returncode == 1
    assert wanted in done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
