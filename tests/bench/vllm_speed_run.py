"""One engine of the section vllm-speed, in a process of its own.

    python -m tests.bench.vllm_speed_run < job.json

A job is ``{"options", "prompts", "batches", "times", "tokens"}``; the last line printed is
``{batch: {"seconds": [...], "ids": [[...]], "margins": [[...]]}}``, seconds of each time. The
engine core runs in this process, workers of several stages in theirs.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from typing import Any

from vllm import LLM, SamplingParams


def main() -> None:
    """Read the job, run it, print."""
    job = json.load(sys.stdin)
    llm = LLM(**job["options"])
    result = {batch: _measured(llm, job, batch) for batch in job["batches"]}
    del llm  # whatever its workers print as they end comes before the result
    gc.collect()
    print("\n" + json.dumps(result), flush=True)


def _measured(llm: LLM, job: dict[str, Any], batch: int) -> dict[str, Any]:
    """The first ``batch`` prompts: once for warmth and margins, then against the clock."""
    prompts = [{"prompt_token_ids": ids} for ids in job["prompts"][:batch]]
    common = {"temperature": 0, "ignore_eos": True, "max_tokens": job["tokens"]}
    first = llm.generate(prompts, SamplingParams(**common, logprobs=2), use_tqdm=False)
    sampling, seconds, outputs = SamplingParams(**common), [], []
    for _ in range(job["times"]):
        began = time.perf_counter()
        outputs = llm.generate(prompts, sampling, use_tqdm=False)
        seconds.append(time.perf_counter() - began)
    return {
        "seconds": seconds,
        "ids": [list(output.outputs[0].token_ids) for output in outputs],
        "margins": [_margins(output.outputs[0].logprobs) for output in first],
    }


def _margins(logprobs: Any) -> list[float]:
    """Best minus second-best logit, per token."""
    both = [sorted((entry.logprob for entry in top.values()), reverse=True)[:2] for top in logprobs]
    return [best - second for best, second in both]


if __name__ == "__main__":
    main()
