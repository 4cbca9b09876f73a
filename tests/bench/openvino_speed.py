"""The OpenVINO engine beside openvino_genai's ContinuousBatchingPipeline: same IR, same cores.

Decode: one request's tokens per second after its first. Prefill: a prompt of 512 tokens, to the
first token. Eight streams: tokens per second of eight requests at once. In turns within one run;
ratios are to GenAI, more is better, and medians of the rounds' own ratios. Stages are all on the
processor, which they share: what more of them cost is the cut. Models other than the bundled one
are made by `python -m tests.bench.openvino_models .bench-models`.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BUNDLED = ROOT / "tests" / "models" / "kjv-hybrid-8l" / "ov"
MORE = ROOT / ".bench-models"
STAGES = (1, 2, 3)
_TOKENS, _LONG, _STREAMS, _ROUNDS = 64, 512, 8, 7

#: Runs prompts to the end of ``tokens`` output tokens each; returns the seconds it took.
Runs = Callable[[Sequence[str], int], float]


def table() -> list[str]:
    """The table as markdown lines."""
    lines = [
        "| model | with | decode, tokens/s | ratio | prefill 512, ms | ratio | 8 streams, tokens/s "
        "| ratio |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for folder in [BUNDLED, *sorted(MORE.glob("*/"))]:
        name = "bundled hybrid" if folder == BUNDLED else folder.name
        lines += rows(name, measure(folder))
    return lines


def measure(folder: Path) -> dict[str, list[tuple[float, float, float]]]:
    """With what -> (decode tokens/s, 1/prefill seconds, tokens/s of eight) of each round."""
    with_what: dict[str, Runs] = {"GenAI": _genai(folder)}
    engines = []
    for stages in STAGES:
        engine, runs = _arcpp(folder, stages)
        engines.append(engine)
        with_what[f"arcpp, {stages} stage" + "s" * (stages > 1)] = runs
    for runs in with_what.values():
        _round(runs)  # whatever is made at first use
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in with_what}
    for _ in range(_ROUNDS):
        for name, runs in with_what.items():
            found[name].append(_round(runs))
    for engine in engines:
        engine.close()
    with_what.clear()
    gc.collect()
    return found


def rows(name: str, found: dict[str, list[tuple[float, float, float]]]) -> list[str]:
    """Of one model; ratios are medians of each round's."""
    first = next(iter(found.values()))
    lines = []
    for what, rounds in found.items():
        decode, prefill, eight = (statistics.median(each) for each in zip(*rounds, strict=True))
        pairs = list(zip(rounds, first, strict=True))
        ratios = [
            statistics.median(mine[n] / theirs[n] for mine, theirs in pairs) for n in range(3)
        ]
        lines.append(
            f"| {name} | {what} | {decode:.1f} | {ratios[0]:.2f} | {1000 / prefill:.0f} | "
            f"{ratios[1]:.2f} | {eight:.1f} | {ratios[2]:.2f} |"
        )
        name = ""
    return lines


def _round(runs: Runs) -> tuple[float, float, float]:
    short = _prompt(16)
    first = runs([short], 1)
    whole = runs([short], _TOKENS + 1)
    long = runs([_prompt(_LONG)], 1)
    eight = runs([_prompt(16 + n) for n in range(_STREAMS)], _TOKENS)
    return _TOKENS / (whole - first), 1 / long, _STREAMS * _TOKENS / eight


def _prompt(words: int) -> str:
    """Text of as many tokens: these words are one each, in all of the models."""
    return " ".join(_WORDS[place % len(_WORDS)] for place in range(words))


_WORDS = ("the", "and", "of", "to", "in", "he", "that", "it", "his", "for")


def _genai(folder: Path) -> Runs:
    import openvino_genai as genai

    scheduling = genai.SchedulerConfig()
    scheduling.cache_size, scheduling.max_num_batched_tokens = 1, _LONG
    scheduling.max_num_seqs, scheduling.enable_prefix_caching = _STREAMS, False
    pipeline = genai.ContinuousBatchingPipeline(str(folder), scheduling, "CPU")

    def runs(prompts: Sequence[str], tokens: int) -> float:
        config = genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = tokens, True, False
        config.apply_chat_template = False
        began = time.perf_counter()
        outputs = pipeline.generate(list(prompts), [config] * len(prompts))
        seconds = time.perf_counter() - began
        assert len(outputs) == len(prompts)
        return seconds

    return runs


def _arcpp(folder: Path, stages: int) -> tuple[Any, Runs]:
    from arcpp_openvino import Engine, EngineOptions, Sampling

    options = EngineOptions(
        max_sequences=_STREAMS, max_batch_tokens=_LONG, max_model_len=2048, prefix_caching=False
    )
    engine = Engine.from_folder(folder, ("CPU",) * stages, None, options)

    def runs(prompts: Sequence[str], tokens: int) -> float:
        sampling = Sampling(max_tokens=tokens, ignore_eos=True)
        began = time.perf_counter()
        outputs = engine.generate_all(prompts, sampling)
        seconds = time.perf_counter() - began
        assert all(len(one.token_ids) == tokens for one in outputs)
        return seconds

    return engine, runs
