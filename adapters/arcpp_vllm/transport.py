"""Puts a link in the place of the pipeline group's tensor sends.

vLLM's worker hands a stage's output to ``get_pp_group().isend_tensor_dict`` and takes its input
from ``irecv_tensor_dict`` (gpu_worker.Worker.execute_model, 0.20 to 0.33). Both are replaced on
that one group instance, so that no device collective runs between stages and the worker's own
body stays as it is. Which link is behind it makes no difference here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from vllm import envs
from vllm.distributed.parallel_state import get_pp_group

from arcpp.hooks import check_same_kinds, hooks_for
from arcpp.link import LinkEnd, LinkReceiver, LinkSender

from .exchange import gather
from .stage_plan import settings_of


class BoundaryTransport:
    """Sender and receiver of one stage, in the shape vLLM's pipeline group offers."""

    def __init__(
        self, sender: LinkSender | None, receiver: LinkReceiver | None, timeout: float
    ) -> None:
        self._sender, self._receiver, self._timeout = sender, receiver, timeout

    def isend_tensor_dict(
        self,
        tensor_dict: dict[str, Any],
        dst: int | None = None,  # noqa: ARG002 (adjacent stages only)
        all_gather_group: Any = None,  # noqa: ARG002 (no tensor parallelism)
        all_gather_tensors: Any = None,  # noqa: ARG002
    ) -> list[Any]:
        """Hand the stage's output over; nothing is left to wait for (hence no handles)."""
        if self._sender is not None:
            self._sender.send(tensor_dict, timeout=self._timeout)
        return []

    def irecv_tensor_dict(
        self,
        src: int | None = None,  # noqa: ARG002 (adjacent stages only)
        all_gather_group: Any = None,  # noqa: ARG002 (no tensor parallelism)
        all_gather_tensors: Any = None,  # noqa: ARG002
    ) -> tuple[dict[str, Any] | None, list[Any], list[Callable[[], None]]]:
        """Promise the stage's input: it is received when the model first asks for it.

        vLLM runs the returned callables once, before the first use of the dictionary, which
        lets this stage prepare its batch while the one before still computes.
        """
        if self._receiver is None:
            return None, [], []
        receiver, tensors = self._receiver, {}

        def receive() -> None:
            tensors.update(receiver.recv(timeout=self._timeout))

        return tensors, [], [receive]

    def close(self) -> None:
        """Close both ends; may be repeated."""
        for end in (self._sender, self._receiver):
            if end is not None:
                end.close()


def install(worker: Any) -> BoundaryTransport | None:
    """Open this stage's links and put them on the pipeline group; None for a single stage.

    Collective over all stages: every rank must call it at the same point. Raises PluginError,
    and StagesDisagree when the two ends of a link are of different kinds.
    """
    pp = get_pp_group()
    if pp.world_size == 1:
        return None
    hooks = hooks_for(settings_of(worker))
    group = dist.new_group(ranks=pp.ranks, backend="gloo")
    stage, ranks, device = pp.rank_in_group, pp.ranks, str(worker.device)
    sender = receiver = None
    if not pp.is_first_rank:  # before the sending end: an end may meet its other end here
        name = f"stage{stage - 1}->stage{stage}"
        receiver = hooks.open_receiver(LinkEnd(name, False, ranks[stage - 1], device, group))
    if not pp.is_last_rank:
        name = f"stage{stage}->stage{stage + 1}"
        sender = hooks.open_sender(LinkEnd(name, True, ranks[stage + 1], device, group))
    check_same_kinds(gather({"sends": _kind(sender), "receives": _kind(receiver)}))
    timeout = hooks.settings.link_timeout or float(envs.VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS)
    boundary = BoundaryTransport(sender, receiver, timeout)
    pp.use_cpu_custom_send_recv = False
    pp.isend_tensor_dict = boundary.isend_tensor_dict
    pp.irecv_tensor_dict = boundary.irecv_tensor_dict
    return boundary


def _kind(end: LinkSender | LinkReceiver | None) -> str | None:
    return None if end is None else end.kind
