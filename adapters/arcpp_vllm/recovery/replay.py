"""In the engine, after the stages were restarted: every request goes back to where it was.

A running request becomes a preempted one: prompt and tokens generated so far are computed anew,
and the stream goes on with the next token. What is undone is bookkeeping of steps that will
never come back (Scheduler, EngineCore, 0.30 to 0.33).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def holding_back(scheduler: Any, allowed: frozenset[str] | None) -> Iterator[None]:
    """Within: only requests in ``allowed`` (None: all) are in the scheduler's waiting queue."""
    if allowed is None:
        yield
        return
    queue = scheduler.waiting
    held = [request for request in queue if request.request_id not in allowed]
    queue.remove_requests(held)
    try:
        yield
    finally:
        for request in reversed(held):
            queue.prepend_request(request)


def requeue(core: Any) -> None:
    """Forget the steps under way and put every running request back into the queue."""
    scheduler = core.scheduler
    if core.batch_queue is not None:
        core.batch_queue.clear()
    scheduler.processed_step_seq = scheduler.sched_step_seq  # no write is under way any more
    scheduler._drain_deferred_frees()
    scheduler.reset_prefix_cache(reset_running_requests=True)
    scheduler.reset_encoder_cache()
    for request in scheduler.requests.values():
        # Else the next real tokens count as those of the lost step and are dropped.
        request.num_in_flight_tokens = 0
        request.num_stale_output_tokens = 0
        request.drop_stale_output = False
        request.num_output_placeholders = 0
    scheduler.reset_preempted_req_ids = set()
    scheduler.finished_req_ids = set()  # the new workers never heard of them
    core._process_aborts_queue()
    scheduler.finished_req_ids = set()


def known_requests(core: Any) -> list[tuple[Any, list[int]]]:
    """Requests that workers are expected to know, as (NewRequestData, output tokens so far)."""
    from vllm.v1.core.sched.output import NewRequestData
    from vllm.v1.request import RequestStatus

    groups = core.scheduler.kv_cache_config.kv_cache_groups
    return [
        (
            NewRequestData.from_request(request, tuple([] for _ in groups)),
            list(request.output_token_ids),
        )
        for request in core.scheduler.requests.values()
        if request.status == RequestStatus.PREEMPTED
    ]


def fail(core: Any, reasons: dict[str, str]) -> dict[int, Any]:
    """End requests with an error; outputs by client, as a step returns them."""
    from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, FinishReason
    from vllm.v1.request import RequestStatus

    outputs: dict[int, Any] = {}
    ended = core.scheduler.finish_requests(list(reasons), RequestStatus.FINISHED_ERROR)
    for request in ended:
        client = outputs.setdefault(request.client_index, EngineCoreOutputs(outputs=[]))
        client.outputs.append(
            EngineCoreOutput(
                request_id=request.request_id, new_token_ids=[], finish_reason=FinishReason.ERROR
            )
        )
    core.scheduler.finished_req_ids = set()
    return outputs
