"""Greedy tokens from real vLLM engines, several in a row, in a process of their own.

    python -m tests.support.generate < job.json > result.json

The engine core runs in that process (workers still in theirs), which saves a start per engine.
A job is ``{"model", "prompts": [[ids]], "max_tokens", "runs": [...]}``, a run ``{"name",
"partition", "options"}``; the result gives, per run and prompt, the tokens, the margin between the
two best logits, and the tokens' log-probabilities.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from arcpp.doctor.garble import first_difference

from . import preloaded

ROOT = Path(__file__).resolve().parent.parent.parent
PARTITION = "VLLM_PP_LAYER_PARTITION"


@dataclass(frozen=True)
class Continuation:
    """What one prompt was continued with. margins: best minus second-best logit, per token;
    logprobs: of the tokens themselves, where somebody asked."""

    ids: list[int]
    margins: list[float]
    logprobs: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Run:
    """One engine: a name for the result, the layer partition (None: planned), LLM options."""

    name: str
    partition: str | None
    options: dict[str, Any]


def generate(
    model: Path,
    prompts: list[list[int] | str],
    max_tokens: int,
    runs: list[Run],
    *,
    log: Path | None = None,
    **common: Any,
) -> dict[str, list[Continuation]]:
    """Continue ``prompts`` greedily with every engine of ``runs``; see the module.

    A prompt that is text (instead of token ids) comes with a small picture. log: where to keep
    what the engines printed. common: LLM options of every run.
    """
    job = {
        "model": str(model),
        "prompts": prompts,
        "max_tokens": max_tokens,
        "runs": [
            {"name": run.name, "partition": run.partition, "options": common | run.options}
            for run in runs
        ],
    }
    environment = os.environ | {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "ARCPP_STANDBY": "1",
    }
    done = preloaded.run(
        "tests.support.generate", given=json.dumps(job), environment=environment, timeout=800
    )
    if log is not None:
        log.write_text(done.stdout + done.stderr)
    if done.returncode:
        raise RuntimeError(
            f"exit code {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-8000:]}"
        )
    result = json.loads(done.stdout.splitlines()[-1])
    return {name: [Continuation(**one) for one in several] for name, several in result.items()}


def departures(
    reference: list[Continuation], found: list[Continuation], bound: float
) -> tuple[int, list[str]]:
    """(streams that left the reference where rounding may, descriptions of those that did worse).

    A stream is compared up to the first token that differs. Where the reference's margin at that
    token is below ``bound`` logits, rounding may have turned it; anywhere else it is wrong.
    """
    rounded, wrong = 0, []
    for number, (wanted, got) in enumerate(zip(reference, found, strict=True)):
        if len(wanted.ids) != len(got.ids):
            wrong.append(f"prompt {number}: {len(got.ids)} tokens instead of {len(wanted.ids)}")
            continue
        at = first_difference(wanted.ids, got.ids)
        if at is None:
            continue
        if wanted.margins[at] < bound:
            rounded += 1
        else:
            wrong.append(f"prompt {number}: differs at token {at}, margin {wanted.margins[at]:.4f}")
    return rounded, wrong


def _main() -> None:
    from vllm import LLM, SamplingParams

    job = json.load(sys.stdin)
    sampling = SamplingParams(
        temperature=0, max_tokens=job["max_tokens"], ignore_eos=True, logprobs=2
    )
    prompts = [_prompt(given) for given in job["prompts"]]
    result = {}
    for run in job["runs"]:
        os.environ.pop(PARTITION, None)
        if run["partition"] is not None:
            os.environ[PARTITION] = run["partition"]
        llm = LLM(model=job["model"], **run["options"])
        outputs = llm.generate(prompts, sampling, use_tqdm=False)
        result[run["name"]] = [_continuation(output.outputs[0]) for output in outputs]
        del llm, outputs
        gc.collect()
    print("\n" + json.dumps(result), flush=True)


def _prompt(given: list[int] | str) -> dict[str, Any]:
    if not isinstance(given, str):
        return {"prompt_token_ids": given}
    from PIL import Image

    picture = Image.radial_gradient("L").resize((64, 64)).convert("RGB")
    return {"prompt": given, "multi_modal_data": {"image": picture}}


def _continuation(output: Any) -> dict[str, Any]:
    margins = []
    for top in output.logprobs:
        best, second = sorted((entry.logprob for entry in top.values()), reverse=True)[:2]
        margins.append(best - second)
    tokens = list(output.token_ids)
    logprobs = [top[token].logprob for token, top in zip(tokens, output.logprobs, strict=True)]
    return {"ids": tokens, "margins": margins, "logprobs": logprobs}


if __name__ == "__main__":
    _main()
