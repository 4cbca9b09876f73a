"""What cannot run is refused: one clear last line, exit code 1, no stack trace, nothing left."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path

import pytest

from tests.support.vllm_server import HYBRID_MODEL, VllmServer

pytestmark = pytest.mark.vllm

BASE = ("--distributed-executor-backend", "arcpp", "--max-model-len", "1024",
        "--enforce-eager", "--dtype", "bfloat16")  # fmt: skip
TWO = ("--pipeline-parallel-size", "2")


@pytest.mark.parametrize(
    ("arguments", "env", "wanted"),
    [
        (
            ("--pipeline-parallel-size", "9"),
            {},
            "--pipeline-parallel-size: 9 is more stages than the model has layers (8)",
        ),
        (
            TWO,
            {"VLLM_PP_LAYER_PARTITION": "5,4"},
            "VLLM_PP_LAYER_PARTITION: '5,4' adds up to 9 layers, but the model has 8",
        ),
        (
            TWO,
            {"VLLM_PP_LAYER_PARTITION": "5;3"},
            "VLLM_PP_LAYER_PARTITION: '5;3' is not layers per stage, such as 60,4",
        ),
        (
            ("--tensor-parallel-size", "2"),
            {},
            "--tensor-parallel-size: 2 is not supported: arcpp splits by layers, "
            "use --pipeline-parallel-size",
        ),
        ((*TWO, "--gpu-memory-utilization", "0.001"), {}, "processes of 2 stages alone"),
        ((*TWO, "--kv-cache-memory-bytes", "100000"), {}, "does not fit: stage"),
        ((*TWO, "--kv-cache-memory-bytes", str(10**13)), {}, "10000000000000 bytes for each cache"),
    ],
    ids=["more stages than layers", "partition sum", "partition form", "tensor parallel",
         "no memory for processes", "no memory for the cache", "no such memory"],
)  # fmt: skip
def test_refused(arguments: tuple[str, ...], env: dict[str, str], wanted: str) -> None:
    server = VllmServer(HYBRID_MODEL, *BASE, *arguments, env=env, preloaded=True)
    try:
        assert server.process.wait(300) == 1
        server.note_leftovers()
    finally:
        server.kill()
    lines = server.text().splitlines()
    ours = [line for line in lines if line.startswith("arcpp: error: ")]
    assert len(ours) == 1, server.text()[-3000:]
    assert wanted in ours[0]
    if "does not fit" in wanted:  # said once, as a table, with the reason after it
        assert server.text().count("nothing fits; at the least") == 1
    assert "Traceback" not in server.text()
    assert "loaded in" not in server.text(), "before a weight is read"
    assert not server.left, server.left
    server.clean_up()


def _refused_for(model: Path | str, *arguments: str) -> str:
    """The one line with which a server for ``model`` is refused."""
    given = (*BASE, *TWO, "--gpu-memory-utilization", "0.3", *arguments)
    server = VllmServer(model, *given, preloaded=True)
    try:
        assert server.process.wait(300) == 1
        server.note_leftovers()
    finally:
        server.kill()
    ours = [line for line in server.text().splitlines() if line.startswith("arcpp: error: ")]
    assert len(ours) == 1, server.text()[-3000:]
    assert "Traceback" not in server.text()
    assert not server.left, server.left
    server.clean_up()
    return ours[0]


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    assert _refused_for(tmp_path).endswith("has no config.json")


def test_a_folder_that_does_not_exist(tmp_path: Path) -> None:
    assert "arcpp: error: model: " in _refused_for(tmp_path / "nothing")


def test_truncated_weights(tmp_path: Path) -> None:
    shutil.copytree(HYBRID_MODEL, tmp_path / "cut")
    weights = tmp_path / "cut" / "model.safetensors"
    with weights.open("r+b") as file:
        file.truncate(1_000_000)
    line = _refused_for(tmp_path / "cut")
    assert "model.safetensors" in line
    assert "beyond" in line


def test_a_port_in_use() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        line = _refused_for(HYBRID_MODEL, "--port", port)
    assert line == "arcpp: error: Address already in use: choose another --port or --host"


def test_memory_that_others_hold() -> None:
    """What a second server on the same devices meets: the host's own check, in one line."""
    line = _refused_for(HYBRID_MODEL, "--gpu-memory-utilization", "1.0")
    assert "memory on node" in line
