"""What cannot run is refused: one clear last line, exit code 1, no stack trace, nothing left."""

from __future__ import annotations

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
    ],
    ids=["more stages than layers", "partition sum", "partition form", "tensor parallel",
         "no memory for processes", "no memory for the cache"],
)  # fmt: skip
def test_refused(arguments: tuple[str, ...], env: dict[str, str], wanted: str) -> None:
    server = VllmServer(HYBRID_MODEL, *BASE, *arguments, env=env)
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
    assert not server.left, server.left
    server.clean_up()
