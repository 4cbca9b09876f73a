"""A real VllmConfig for arithmetic in this process: nothing is started."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest


def vllm_config(model: Path, stages: int) -> Any:
    """vLLM's configuration of ``model`` on ``stages`` stages; skips, saying so, without vLLM."""
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    arg_utils = pytest.importorskip("vllm.engine.arg_utils", reason="needs vLLM")
    return arg_utils.EngineArgs(
        model=str(model),
        skip_tokenizer_init=True,
        dtype="bfloat16",
        max_model_len=4096,
        pipeline_parallel_size=stages,
        distributed_executor_backend="mp" if stages > 1 else "uni",
        async_scheduling=False,
        enforce_eager=True,
    ).create_engine_config()
