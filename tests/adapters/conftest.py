"""One real server per module: a start takes half a minute or more on two cores."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.vllm_server import HYBRID_MODEL, VllmServer

SMALL = (
    "--distributed-executor-backend", "arcpp", "--pipeline-parallel-size", "2",
    "--max-model-len", "1024", "--max-num-seqs", "8", "--max-num-batched-tokens", "256",
    "--enforce-eager", "--dtype", "bfloat16", "--gpu-memory-utilization", "0.3",
)  # fmt: skip


@pytest.fixture(scope="module")
def hybrid_server() -> Iterator[VllmServer]:
    """The bundled model on two CPU stages, planned by arcpp; stopped as with Ctrl-C."""
    with VllmServer(HYBRID_MODEL, *SMALL) as server:
        yield server
