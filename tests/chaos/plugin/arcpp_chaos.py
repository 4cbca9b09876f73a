"""A plugin that breaks the stage it runs in when a file says so, and writes down what it sees.

CHAOS_FOLDER holds ``fault.json``, ``{"what", "stage"}``: the stage it names takes it away, and does
that. ``events.jsonl`` in the same folder gets a line for every fault and recovery, with the time.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from arcpp import hookimpl
from arcpp.link import LinkEnd, LinkSender
from arcpp.plan import Plan
from arcpp.supervise import Fault

_FOLDER = Path(os.environ.get("CHAOS_FOLDER", "/nowhere"))
_here: dict[str, int] = {}  # "stage": of this process, once it is known


def _asked(*kinds: str) -> str | None:
    """The fault this stage is asked for, if it is one of ``kinds``; asked once."""
    path = _FOLDER / "fault.json"
    try:
        asked = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    if asked["stage"] != _here.get("stage") or asked["what"] not in kinds:
        return None
    try:
        path.rename(_FOLDER / "taken.json")
    except FileNotFoundError:
        return None
    _tell("injected", what=asked["what"], stage=asked["stage"])
    return str(asked["what"])


def _tell(event: str, **fields: Any) -> None:
    line = json.dumps({"event": event, "at": time.time(), **fields}) + "\n"
    with contextlib.suppress(OSError), (_FOLDER / "events.jsonl").open("a") as file:
        file.write(line)


@hookimpl
def arcpp_plan_made(plan: Plan, stage: int | None) -> None:
    """In a worker: from now on its steps may go wrong."""
    if stage is None:
        return
    _here["stage"] = stage
    from arcpp_vllm.worker import ArcppWorker

    runner = ArcppWorker.__mro__[1]
    _break(runner, "execute_model", "exit in execute", "device lost", "out of memory")
    _break(runner, "sample_tokens", "exit in sample")


def _break(owner: Any, name: str, *kinds: str) -> None:
    original = getattr(owner, name)
    if getattr(original, "_chaos", False):
        return

    def call(self: Any, given: Any) -> Any:
        poison = os.environ.get("CHAOS_POISON")  # a token that kills the stage whenever it is seen
        if poison and name == "execute_model" and _holds(self, given, int(poison)):
            os._exit(4)
        what = _asked(*kinds)
        if what is not None and what.startswith("exit"):
            os._exit(3)
        if what == "device lost":
            raise RuntimeError(
                "Native API failed. Native API returns: 20 (UR_RESULT_ERROR_DEVICE_LOST)"
            )
        if what == "out of memory":
            raise RuntimeError("XPU out of memory. Tried to allocate 2.00 GiB (GPU 0)")
        return original(self, given)

    call._chaos = True  # type: ignore[attr-defined]
    setattr(owner, name, call)


def _holds(worker: Any, step: Any, token: int) -> bool:
    """Whether a request of this step has ``token`` in its prompt."""
    new = {request.req_id: request.prompt_token_ids for request in step.scheduled_new_reqs}
    known = worker.model_runner.requests
    for name in step.num_scheduled_tokens:
        prompt = new.get(name) or (known[name].prompt_token_ids if name in known else ())
        if token in (prompt or ()):
            return True
    return False


@hookimpl(wrapper=True)
def arcpp_open_link(end: LinkEnd) -> Iterator[None]:
    """Whatever link is opened, its sender may send wrong things."""
    opened: Any = yield
    return BreakingSender(opened) if end.sends else opened


class BreakingSender(LinkSender):
    """Another sender, which sometimes sends what is no number, or another shape."""

    def __init__(self, sender: LinkSender) -> None:
        self.name, self.kind, self._sender = sender.name, sender.kind, sender

    @property
    def notes(self) -> Any:
        return self._sender.notes

    @property
    def counters(self) -> Any:
        return self._sender.counters

    def send(self, tensors: Mapping[str, Any], *, timeout: float) -> None:
        what = _asked("not a number", "corrupt link")
        if what == "not a number":
            tensors = {name: tensor.clone() for name, tensor in tensors.items()}
            next(iter(tensors.values()))[0, 0] = float("nan")
        if what == "corrupt link":
            tensors = {name: tensor[:, :-1].contiguous() for name, tensor in tensors.items()}
        self._sender.send(tensors, timeout=timeout)

    def close(self) -> None:
        self._sender.close()


@hookimpl
def arcpp_fault(fault: Fault) -> None:
    """In the engine: a fault was noticed."""
    _tell("fault", kind=str(fault.kind), stage=fault.stage, cause=fault.cause)


@hookimpl
def arcpp_recovered(fault: Fault, seconds: Mapping[str, float]) -> None:
    """In the engine: stages run again."""
    _tell("recovered", kind=str(fault.kind), seconds=dict(seconds))
