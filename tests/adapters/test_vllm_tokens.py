"""Same tokens as one process, for every cut: the reason arcpp may be trusted at all.

Dense Qwen3 runs in float32 and must match exactly. Gated DeltaNet needs bfloat16 on vLLM's CPU
build, where rounding depends on how many sequences share a step: there, a stream may leave the
reference only at a token whose two best logits are less than ROUNDING apart. One unit in the last
place of a bfloat16 logit between 8 and 16 is 0.0625; bfloat16 alone turned tokens of the bundled
model at margins up to 0.07 (its README).
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support import tiny_models
from tests.support.generate import Continuation, Run, departures, generate
from tests.support.vllm_server import HYBRID_MODEL

pytestmark = pytest.mark.vllm

ROUNDING = 0.1
CUTS = ("1,7", "5,3", "7,1", "3,3,2", "2,1,5")
ENGINE = {
    "max_model_len": 1024,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 256,  # prompts below are longer: chunked prefill
    "enforce_eager": True,
    "kv_cache_memory_bytes": 64 << 20,
    "seed": 0,
}
ONE_PROCESS = Run("one process", None, {"distributed_executor_backend": "uni"})


def _arcpp(cut: str) -> Run:
    stages = len(cut.split(","))
    return Run(
        cut, cut, {"distributed_executor_backend": "arcpp", "pipeline_parallel_size": stages}
    )


def _named(backend: str, stages: int) -> Run:
    """Other ways to ask for arcpp, with the partition left to the planner."""
    return Run(
        f"{backend}, {stages}",
        None,
        {"distributed_executor_backend": backend, "pipeline_parallel_size": stages},
    )


def _prompts() -> list[list[int]]:
    """Eight prompts of unequal length, one of them longer than a step."""
    lengths = (1, 5, 17, 64, 65, 130, 255, 700)
    return [[(7 * i + 13 * n) % 4000 + 64 for i in range(n)] for n in lengths]


def test_dense_qwen3_is_exact_in_float32(tmp_path: Path) -> None:
    model = tiny_models.write_qwen3(tmp_path / "qwen3")
    runs = [ONE_PROCESS, *map(_arcpp, CUTS)]
    found = generate(model, _prompts(), 48, runs, dtype="float32", **ENGINE)
    for cut in CUTS:
        assert departures(found["one process"], found[cut], 0.0) == (0, []), cut


def test_qwen3_next_differs_by_rounding_only(tmp_path: Path) -> None:
    model = tiny_models.write_qwen3_next(tmp_path / "qwen3-next")
    runs = [ONE_PROCESS, *map(_arcpp, CUTS)]
    found = generate(model, _prompts(), 48, runs, dtype="bfloat16", **ENGINE)
    for cut in CUTS:
        rounded, wrong = departures(found["one process"], found[cut], ROUNDING)
        print(f"Qwen3-Next {cut}: {rounded} of {len(_prompts())} streams left by rounding")
        assert not wrong, (cut, wrong)


def test_bundled_qwen3_5_gives_its_reference() -> None:
    """All twelve prompts: losing any stage's state changes six or more of them (its README)."""
    rows = json.loads((HYBRID_MODEL.parent / "reference.json").read_text())["prompts"]
    reference = [Continuation(row["output_ids"], row["margins"]) for row in rows]
    prompts = [row["prompt_ids"] for row in rows]
    runs = [
        ONE_PROCESS,
        *map(_arcpp, CUTS),
        _named("arcpp", 1),
        _named("arcpp_vllm.ArcppExecutor", 2),
        _named("mp", 1),  # stock, with arcpp installed and not asked for
    ]
    found = generate(HYBRID_MODEL, prompts, 64, runs, dtype="bfloat16", **ENGINE)
    for run in runs:
        rounded, wrong = departures(reference, found[run.name], ROUNDING)
        print(f"bundled model, {run.name}: {rounded} of 12 streams left by rounding")
        assert not wrong, (run.name, wrong)
