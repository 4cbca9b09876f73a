"""``arcpp plan`` against the logs of eight full engine starts: every figure, exactly.

Three architectures, one to three stages, given and planned cuts, block sizes, prefix caching on
and off, KV budgets, lengths given and ``auto``. One process, so that a start takes seconds.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from arcpp.cli.plan import plan_command
from arcpp.startlog import parse_log
from tests.support import tiny_models
from tests.support.engine_starts import Start, Started, start_all
from tests.support.vllm_server import HYBRID_MODEL

pytestmark = pytest.mark.vllm


@dataclass(frozen=True)
class Case:
    """One start. kv: bytes of KV memory per stage. length: None for the longest that fits.
    options: of ``arcpp plan`` and, under the same names, of vLLM."""

    model: str
    stages: int
    kv: int
    partition: str | None = None
    length: int | None = None
    caching: bool = True
    options: dict[str, Any] = field(default_factory=dict)


CASES = {
    "bundled, one stage": Case("bundled", 1, 40 << 20, length=4096),
    "bundled, two stages, auto": Case("bundled", 2, 3 << 20),
    "bundled, three stages, no caching": Case(
        "bundled", 3, (7 << 20) + 12345, caching=False, options={"block_size": 640}
    ),
    "dense, two stages, blocks of 32, auto": Case(
        "qwen3", 2, 1 << 20, partition="5,3", options={"block_size": 32}
    ),
    "dense, three stages, no caching": Case(
        "qwen3", 3, 64 << 20, partition="5,2,1", length=2048, caching=False
    ),
    "next, one stage, auto": Case("qwen3_next", 1, 9 << 20),
    "next, two stages, no caching, auto": Case(
        "qwen3_next", 2, 2 << 20, partition="5,3", caching=False
    ),
    "next, three stages, blocks of 48": Case(
        "qwen3_next", 3, 257 << 20, length=4096, options={"block_size": 48, "max_num_seqs": 300}
    ),
}

AUTO = [name for name, case in CASES.items() if case.length is None]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {
        "bundled": HYBRID_MODEL,
        "qwen3": tiny_models.write_qwen3(folder / "qwen3"),
        "qwen3_next": tiny_models.write_qwen3_next(folder / "qwen3_next"),
    }


@pytest.fixture(scope="module")
def starts(models: dict[str, Path]) -> dict[str, Started]:
    common = {
        "distributed_executor_backend": "arcpp",
        "load_format": "dummy",
        "dtype": "bfloat16",
        "enforce_eager": True,
        "max_num_batched_tokens": 512,
        "max_num_seqs": 256,
        "seed": 0,
    }
    return start_all(
        [
            Start(
                name,
                models[case.model],
                case.partition,
                {
                    **common,
                    "pipeline_parallel_size": case.stages,
                    "kv_cache_memory_bytes": case.kv,
                    "max_model_len": -1 if case.length is None else case.length,
                    "enable_prefix_caching": case.caching,
                    **case.options,
                },
            )
            for name, case in CASES.items()
        ]
    )


@pytest.fixture(params=CASES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def planned(
    name: str, models: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> dict[str, Any]:
    """What a user gets who types the same options."""
    case = CASES[name]
    arguments = [str(models[case.model]), "--json", "--host", "vllm@0.32.0"]
    arguments += ["--device", "cpu:0=8GiB"] * case.stages
    arguments += ["--kv-memory", str(case.kv), "--dtype", "bfloat16"]
    arguments += ["--max-num-batched-tokens", "512"]
    arguments += ["--max-model-len", str(case.length or "auto")]
    arguments += ["--prefix-caching" if case.caching else "--no-prefix-caching"]
    arguments += ["--partition", case.partition] if case.partition else []
    for option, value in case.options.items():
        arguments += [f"--{option.replace('_', '-')}", str(value)]
    plan_command.main(arguments, standalone_mode=False)
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def test_the_log_says_what_the_plan_says(
    name: str, planned: dict[str, Any], starts: dict[str, Started]
) -> None:
    log = parse_log(starts[name].log)
    assert log.kv_cache_tokens == planned["kv_cache_tokens"]  # "KV cache size: N tokens"
    assert log.max_model_len == planned["effective_max_model_len"]
    assert log.num_blocks == planned["num_blocks"]
    if log.block_tokens is not None:  # hybrids say it
        assert log.block_tokens == planned["block_tokens"]


def test_the_engine_runs_what_the_plan_says(
    name: str, planned: dict[str, Any], starts: dict[str, Started]
) -> None:
    engine = starts[name]
    assert engine.num_blocks == planned["num_blocks"]
    assert engine.block_size == planned["block_tokens"]
    assert engine.max_model_len == planned["effective_max_model_len"]
    layers = [f"holds layers [{low}, {high})" for low, high in ranges(planned)]
    said = [line for line in engine.log if "holds layers" in line]
    assert len(said) == len(layers)
    assert all(any(each in line for line in said) for each in layers)


def test_the_scheduler_runs_no_more_requests_than_planned(
    name: str, planned: dict[str, Any], starts: dict[str, Started]
) -> None:
    engine = starts[name]
    assert engine.running == engine.max_num_seqs == planned["max_num_seqs"]
    asked = CASES[name].options.get("max_num_seqs", 256)
    lines = [line for line in engine.log if "arcpp: max_num_seqs" in line]
    lowered = planned["max_num_seqs"] < asked
    assert len(lines) == lowered, "said once, and only when it is so"
    if lowered:
        numbers = f"max_num_seqs {asked} -> {engine.running}: of {engine.num_blocks} blocks"
        assert numbers in lines[0]


@pytest.mark.parametrize("name", AUTO, indirect=True)
def test_auto_is_the_longest_that_fits(
    name: str, planned: dict[str, Any], starts: dict[str, Started]
) -> None:
    engine = starts[name]
    assert engine.max_model_len == planned["max_model_len"]
    limit = {"bundled": 32768}.get(CASES[name].model, 4096)
    assert (engine.one_more is None) == (engine.max_model_len == limit)
    if engine.one_more is not None:
        assert "is larger than the available KV cache memory" in engine.one_more


def test_some_were_lowered_and_some_lengths_were_found(starts: dict[str, Started]) -> None:
    """The comparisons above are not empty."""
    assert len(starts) == len(CASES)
    assert sum("max_num_seqs" in "".join(engine.log) for engine in starts.values()) >= 3
    found = [starts[name] for name in AUTO]
    assert len({engine.max_model_len for engine in found}) >= 3
    assert sum(engine.one_more is not None for engine in found) >= 3


def ranges(planned: dict[str, Any]) -> list[tuple[int, int]]:
    return [tuple(stage["layers"]) for stage in planned["stages"]]
