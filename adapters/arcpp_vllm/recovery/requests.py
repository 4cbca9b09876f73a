"""In a worker that has just been started again: the requests it would know had it never gone.

The scheduler sends a resumed request as one the worker has seen before, with what changed only
(SchedulerOutput.scheduled_cached_reqs, V1 runner, 0.20 to 0.33). So each is made known the way
the runner itself does it, by a step that schedules it as new, and then given the tokens it had.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def restore(runner: Any, requests: Sequence[tuple[Any, list[int]]]) -> int:
    """Make ``requests``, as (NewRequestData, output tokens so far), known to ``runner``.

    They are in no batch afterwards, as after a preemption. Returns how many.
    """
    from vllm.v1.core.sched.output import SchedulerOutput

    for new, tokens in requests:
        step = SchedulerOutput.make_empty()
        step.scheduled_new_reqs = [new]
        step.num_scheduled_tokens = {new.req_id: 1}
        step.total_num_scheduled_tokens = 1
        runner._update_states(step)
        state = runner.requests[new.req_id]
        state.output_token_ids.extend(tokens)
        if tokens:
            runner.num_prompt_logprobs.pop(new.req_id, None)  # they were delivered
            _advance(runner, state.generator, len(tokens))
    if requests:
        runner._update_states(SchedulerOutput.make_empty())
    return len(requests)


def _advance(runner: Any, generator: torch.Generator | None, draws: int) -> None:
    """Bring a seeded request's generator to where it stood after ``draws`` sampled tokens.

    By drawing again what the runner's own sampler draws for one row: how much that is differs
    between platforms, and it does not depend on the logits.
    """
    sampler = getattr(getattr(runner, "sampler", None), "topk_topp_sampler", None)
    if generator is None or sampler is None:
        return
    row = torch.zeros(1, runner.input_batch.vocab_size, device=runner.device)
    for _ in range(draws):
        sampler(row.clone(), {0: generator}, None, None)
