"""Stages give back what they never run; text and images come out the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from arcpp.profile import load_profile
from tests.support import tiny_models
from tests.support.generate import Continuation, Run, departures, generate
from tests.support.vllm_server import HYBRID_MODEL

pytestmark = pytest.mark.vllm

ROUNDING = 0.1  # logits; see test_vllm_tokens
ENGINE = {
    "max_model_len": 1024,
    "max_num_seqs": 4,
    "enforce_eager": True,
    "kv_cache_memory_bytes": 64 << 20,
    "dtype": "bfloat16",
}
ONE_PROCESS = Run("one process", None, {"distributed_executor_backend": "uni"})
THREE = Run(
    "4,2,2", "4,2,2", {"distributed_executor_backend": "arcpp", "pipeline_parallel_size": 3}
)
_GAVE_BACK = re.compile(r"gave back (\w+) \((\d+) bytes\)")


def _given_back(log: str) -> dict[int, dict[str, int]]:
    """Stage -> role -> bytes, as the stages logged it."""
    found = {}
    for line in log.splitlines():
        match = re.search(r"arcpp: stage (\d) loaded", line)
        if match:
            found[int(match[1])] = {role: int(size) for role, size in _GAVE_BACK.findall(line)}
    return found


def _check_same(found: dict[str, list[Continuation]]) -> None:
    """Same tokens up to bfloat16 rounding; see test_vllm_tokens."""
    rounded, wrong = departures(found["one process"], found["4,2,2"], ROUNDING)
    print(f"{rounded} streams left by rounding")
    assert not wrong


def test_qwen3_5_keeps_vision_and_embedding_on_the_first_stage_only(tmp_path: Path) -> None:
    """The picture goes through the vision tower of stage 0; later stages only need its grid."""
    log = tmp_path / "log"
    picture = "<|vision_start|><|image_pad|><|vision_end|>In the beginning"
    found = generate(HYBRID_MODEL, [picture, [536, 3367, 301]], 24, [ONE_PROCESS, THREE],
                     log=log, **ENGINE)  # fmt: skip
    _check_same(found)
    roles = load_profile(HYBRID_MODEL).roles
    given_back = _given_back(log.read_text())
    print("Qwen3.5 gave back", given_back)
    assert given_back[0] == {}
    for stage in (1, 2):
        assert given_back[stage]["embed"] == roles["embed"]
        # Its weights, and the table of rotary positions that vLLM computes beside them.
        assert 0 <= given_back[stage]["vision"] - roles["vision"] < 1 << 20


def test_qwen3_next_keeps_embedding_first_and_head_last(tmp_path: Path) -> None:
    model, log = tiny_models.write_qwen3_next(tmp_path / "qwen3-next"), tmp_path / "log"
    prompt = list(range(100, 140))
    found = generate(model, [prompt], 24, [ONE_PROCESS, THREE], log=log, **ENGINE)
    _check_same(found)
    roles = load_profile(model, dtype="bfloat16", weights_dtype="bfloat16").roles
    given_back = _given_back(log.read_text())
    print("Qwen3-Next gave back", given_back)
    assert given_back == {
        0: {"lm_head": roles["lm_head"]},
        1: {"embed": roles["embed"], "lm_head": roles["lm_head"]},
        2: {"embed": roles["embed"]},
    }


def test_a_tied_head_keeps_the_embedding_it_shares(tmp_path: Path) -> None:
    """Dense: vLLM ties no head of Qwen3-Next, and computes with memory that nobody wrote."""
    model, log = tiny_models.write_qwen3(tmp_path / "tied", tied=True), tmp_path / "log"
    prompt = list(range(100, 140))
    found = generate(model, [prompt], 24, [ONE_PROCESS, THREE], log=log, **ENGINE)
    _check_same(found)
    given_back = _given_back(log.read_text())
    print("tied Qwen3 gave back", given_back)
    assert "embed" not in given_back[2]
