"""Output tokens per second of vLLM on the processor: arcpp's two stages, stock's, one process.

The bundled model in bfloat16, cut 4,4, greedy, 16 tokens of prompt and 128 of answer. Stock is
vLLM's own `mp` executor with the one buffer without which it dies at the first request. Every
engine is started anew in each round, in turns forwards and backwards; a figure is the median of
its rounds, a ratio the median of the rounds' ratios (lowest to highest). Streams: of those of
batches 1 and 8 in the last round, how many are those of one process; one may leave it where the
two best logits are closer than bfloat16 tells apart (0.1), anything else is an error. One process
has all cores; with one thread it has what a stage has.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.support.generate import PARTITION, Continuation, departures
from tests.support.vllm_server import HYBRID_MODEL, ROOT, SMALL_HOST

_ROUNDS, _TIMES, _TOKENS, _PROMPT = 4, 3, 128, 16
_BATCHES = (1, 8)
_ROUNDING = 0.1
_OPTIONS = {
    "model": str(HYBRID_MODEL),
    "dtype": "bfloat16",
    "max_model_len": 1024,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 256,
    "enforce_eager": True,
    "kv_cache_memory_bytes": 64 << 20,
    "seed": 0,
    "async_scheduling": False,
    "enable_prefix_caching": False,
}
_TWO = {"pipeline_parallel_size": 2}


@dataclass(frozen=True)
class Engine:
    """A row: its name, threads of each process (None: all cores), and options of LLM."""

    name: str
    threads: int | None
    options: dict[str, Any] = field(default_factory=dict)


ARCPP = Engine("arcpp, 2 stages", 1, {"distributed_executor_backend": "arcpp", **_TWO})
STOCK = Engine(
    "stock mp, 2 stages",
    1,
    {
        "distributed_executor_backend": "mp",
        "worker_cls": "tests.support.stock_worker.StockWorker",
        **_TWO,
    },
)
ONE = Engine("one process", None, {"distributed_executor_backend": "uni"})
ONE_THREAD = Engine("one process, one thread", 1, {"distributed_executor_backend": "uni"})
ENGINES = (ARCPP, STOCK, ONE, ONE_THREAD)


def table() -> list[str]:
    """The table as markdown lines. Raises RuntimeError for an engine that gives wrong tokens."""
    rounds = []
    for number in range(_ROUNDS):
        engines = ENGINES if number % 2 == 0 else ENGINES[::-1]
        rounds.append({engine.name: _run(engine) for engine in engines})
        print(f"round {number + 1} of {_ROUNDS}", flush=True)
    return rows(rounds)


def rows(rounds: list[dict[str, dict[str, Any]]]) -> list[str]:
    """What each engine of each round found, as markdown lines."""
    heads = [f"batch {batch}" for batch in _BATCHES]
    lines = [
        f"| engine | {' | '.join(heads)} | {' | '.join(f'{head} / stock' for head in heads)} "
        "| same streams |",
        "| --- " * (2 * len(_BATCHES) + 2) + "|",
    ]
    for engine in ENGINES:
        speeds, ratios = [], []
        for batch in _BATCHES:
            ours = [_tokens_per_s(found[engine.name], batch) for found in rounds]
            stock = [_tokens_per_s(found[STOCK.name], batch) for found in rounds]
            speeds.append(f"{statistics.median(ours):.0f}")
            ratios.append(_spread([a / b for a, b in zip(ours, stock, strict=True)]))
        same = _same(rounds[-1][ONE.name], rounds[-1][engine.name], engine.name)
        lines.append(f"| {engine.name} | {' | '.join((*speeds, *ratios))} | {same} |")
    return lines


def _tokens_per_s(found: Mapping[str, Any], batch: int) -> float:
    return batch * _TOKENS / statistics.median(found[str(batch)]["seconds"])


def _spread(ratios: list[float]) -> str:
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def _same(reference: Mapping[str, Any], found: Mapping[str, Any], name: str) -> str:
    """ "9 of 9". Raises RuntimeError when a stream differs by more than rounding."""
    rounded, wrong, streams = 0, [], 0
    for batch in map(str, _BATCHES):
        wanted, got = (
            [Continuation(ids, margins) for ids, margins in zip(*both, strict=True)]
            for both in (
                (each[batch]["ids"], each[batch]["margins"]) for each in (reference, found)
            )
        )
        left, worse = departures(wanted, got, _ROUNDING)
        rounded, wrong, streams = rounded + left, wrong + worse, streams + len(got)
    if wrong:
        raise RuntimeError(f"{name}: {'; '.join(wrong)}")
    return f"{streams - rounded} of {streams}"


def _run(engine: Engine) -> dict[str, Any]:
    rows = json.loads((HYBRID_MODEL.parent / "reference.json").read_text())["prompts"]
    job = {
        "options": _OPTIONS | engine.options,
        "prompts": [row["prompt_ids"][:_PROMPT] for row in rows],
        "batches": _BATCHES,
        "times": _TIMES,
        "tokens": _TOKENS,
    }
    threads = engine.threads or len(os.sched_getaffinity(0))
    environment = os.environ | SMALL_HOST
    environment |= {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": str(threads),
    }
    environment |= {PARTITION: "4,4"} if "pipeline_parallel_size" in engine.options else {}
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.vllm_speed_run"],
        input=json.dumps(job),
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment,
        timeout=600,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{engine.name}: {done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result
