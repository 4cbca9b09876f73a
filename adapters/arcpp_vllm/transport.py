"""Puts a link in the place of the pipeline group's tensor sends.

vLLM's worker hands a stage's output to ``get_pp_group().isend_tensor_dict`` and takes its input
from ``irecv_tensor_dict`` (gpu_worker.Worker.execute_model, 0.20 to 0.33). Both are replaced on
that one group instance, so that no device collective runs between stages and the worker's own
body stays as it is. Which link is behind it makes no difference here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from vllm import envs
from vllm.distributed.parallel_state import get_pp_group
from vllm.logger import init_logger

from arcpp.hooks import check_same_kinds, hooks_for
from arcpp.link import BoundarySpec, LinkEnd, LinkReceiver, LinkSender, TensorSpec

from .exchange import gather
from .link_counters import Published, publish
from .recovery.finite import FiniteCheck
from .stage_plan import settings_of

logger = init_logger("vllm.arcpp.link")


class BoundaryTransport:
    """Sender and receiver of one stage, in the shape vLLM's pipeline group offers.

    sent, received: where metrics find what either end counted; None where nobody looks. finite:
    looks at what arrives, for values that are none.
    """

    def __init__(
        self,
        sender: LinkSender | None,
        receiver: LinkReceiver | None,
        timeout: float,
        *,
        sent: Published | None = None,
        received: Published | None = None,
        finite: FiniteCheck | None = None,
    ) -> None:
        self._finite = finite
        self._sender, self._receiver, self._timeout = sender, receiver, timeout
        self._sent, self._received = sent, received

    def isend_tensor_dict(
        self,
        tensor_dict: dict[str, Any],
        dst: int | None = None,  # noqa: ARG002 (adjacent stages only)
        all_gather_group: Any = None,  # noqa: ARG002 (no tensor parallelism)
        all_gather_tensors: Any = None,  # noqa: ARG002
    ) -> list[Any]:
        """Hand the stage's output over; nothing is left to wait for (hence no handles)."""
        if self._sender is not None:
            try:
                self._sender.send(tensor_dict, timeout=self._timeout)
            finally:
                if self._sent is not None:
                    self._sent.update()
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
        receiver, received, finite = self._receiver, self._received, self._finite
        tensors: dict[str, Any] = {}

        def receive() -> None:
            try:
                tensors.update(receiver.recv(timeout=self._timeout))
            finally:
                if received is not None:
                    received.update()
            if finite is not None:
                finite.look(f"boundary {receiver.name}", tensors)

        return tensors, [], [receive]

    def close(self) -> None:
        """Close both ends; may be repeated."""
        for end in (self._sender, self._receiver, self._sent, self._received):
            if end is not None:
                end.close()


def install(worker: Any, finite: FiniteCheck | None = None) -> BoundaryTransport | None:
    """Open this stage's links and put them on the pipeline group; None for a single stage.

    finite: looks at everything that is received.

    Collective over all stages: every rank must call it at the same point. Raises PluginError,
    and StagesDisagree when the two ends of a link are of different kinds.
    """
    pp = get_pp_group()
    if pp.world_size == 1:
        return None
    hooks = hooks_for(settings_of(worker))
    group = dist.new_group(ranks=pp.ranks, backend="gloo")
    stage, ranks, device = pp.rank_in_group, pp.ranks, str(worker.device)
    most = _boundary(worker.model_runner)
    sender = receiver = None
    if not pp.is_first_rank:  # before the sending end: an end may meet its other end here
        name = f"stage{stage - 1}->stage{stage}"
        receiver = hooks.open_receiver(LinkEnd(name, False, ranks[stage - 1], device, group, most))
    if not pp.is_last_rank:
        name = f"stage{stage}->stage{stage + 1}"
        sender = hooks.open_sender(LinkEnd(name, True, ranks[stage + 1], device, group, most))
    check_same_kinds(gather({"sends": _kind(sender), "receives": _kind(receiver)}))
    for end in (receiver, sender):
        if end is not None:
            _say(end)
    timeout = hooks.settings.link_timeout or float(envs.VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS)
    model = worker.model_config.served_model_name
    sent = publish(sender, sends=True, model_name=model)
    received = publish(receiver, sends=False, model_name=model)
    boundary = BoundaryTransport(
        sender, receiver, timeout, sent=sent, received=received, finite=finite
    )
    pp.use_cpu_custom_send_recv = False
    pp.isend_tensor_dict = boundary.isend_tensor_dict
    pp.irecv_tensor_dict = boundary.irecv_tensor_dict
    return boundary


def _say(end: LinkSender | LinkReceiver) -> None:
    """One line on how this end works, and what it noted."""
    details = [
        f"{what} {getattr(value, 'value', value)}"
        for what, value in (
            ("pages", getattr(end, "pinning", None)),
            ("verification", getattr(end, "verification", None)),
        )
        if value is not None
    ]
    logger.info("arcpp: %s over %s", end.name, ", ".join([end.kind, *details]))
    for note in end.notes:
        logger.warning("arcpp: %s", note)


def _boundary(runner: Any) -> BoundarySpec:
    """The largest hop: what the model says crosses, for the largest batch of a step."""
    tensors = runner.model.make_empty_intermediate_tensors(
        batch_size=runner.max_num_tokens,
        dtype=runner.model_config.dtype,
        device=torch.device("meta"),
    ).tensors
    return BoundarySpec(
        tuple(
            TensorSpec(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
            for name, tensor in tensors.items()
        )
    )


def _kind(end: LinkSender | LinkReceiver | None) -> str | None:
    return None if end is None else end.kind
