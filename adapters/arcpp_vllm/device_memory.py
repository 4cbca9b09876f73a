"""A stage's device memory that can be believed, and a vLLM that starts when its own figure cannot.

Symptom: on two B70 vLLM's memory query (``torch.ops._C_cache_ops.getMemoryInfo``, which
platforms/xpu.py puts in the place of ``torch.accelerator.get_memory_info``) gave 0 bytes free and
the right total, and vLLM refused to start (vllm#53990); on other drivers the query raises. Can go
when vLLM itself checks its figure against another source. Not run on an Intel GPU.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from vllm.logger import init_logger

from arcpp.backends.torch_devices import (
    host_reading,
    measure_device,
    one_line,
    trial_allocation,
)
from arcpp.devices import DeviceMemory
from arcpp.probe import Reading, Verdict, after_trial, judge
from arcpp.probe.choose import default_reserve

logger = init_logger("vllm.arcpp.memory")

_MARK = "_arcpp_checked"


def check_memory_queries() -> None:
    """Let vLLM's memory query in this process answer with possible figures. Idempotent.

    Before ``init_device``. A possible answer passes unchanged; an impossible one, or an
    exception, is replaced by what other sources say, with one warning.
    """
    original = torch.accelerator.get_memory_info
    if getattr(original, _MARK, False):
        return
    torch.accelerator.get_memory_info = _checked(original)  # type: ignore[assignment]


def measure(
    device: Any, total: int, free: int, declared: Reading | None = None
) -> tuple[DeviceMemory, Verdict]:
    """Memory of ``device`` to plan with, from the host's own (total, free) and other sources.

    Bytes. The reserve is that of a card which drives a monitor. When the figure is doubtful (all
    of it free, or no source gave one) a trial allocation checks it first. Never raises for a
    source's sake: the worst case is the total less what torch holds here. Only for accelerators.
    declared: what the user says (source :data:`arcpp.probe.DECLARED`); it wins.
    """
    measured = measure_device(device, host_reading(int(total), int(free)), declared)
    verdict = measured.verdict
    if (
        verdict.memory is None
    ):  # not even a total: the host's own figures, for the planner to refuse
        return DeviceMemory(int(total), int(free), source="host"), verdict
    if verdict.doubt is not None:
        verdict = after_trial(verdict, trial_allocation(device, _trial_size(verdict.memory)))
    memory = verdict.memory or measured.verdict.memory
    assert memory is not None
    say(device, memory, verdict)
    return replace(memory, reserve=default_reserve(measured.display)), verdict


def say(device: Any, memory: DeviceMemory, verdict: Verdict) -> None:
    """One line for what was put aside and what stays doubtful; silent when all agree."""
    put_aside = [str(rejected) for rejected in verdict.rejected if rejected.reading.error is None]
    if put_aside or verdict.doubt:
        logger.warning(
            "arcpp: %s: memory from %s%s%s",
            device,
            memory.source,
            f"; not believed: {', '.join(put_aside)}" if put_aside else "",
            f"; doubtful: {verdict.doubt}" if verdict.doubt else "",
        )


def _trial_size(memory: DeviceMemory) -> int:
    """What a stage may come to hold: all that is said to be free, less a sixteenth."""
    return memory.free - memory.free // 16


def _checked(original: Callable[..., Any]) -> Callable[..., Any]:
    warned: set[str] = set()
    asking = threading.local()  # measure_device asks torch, and so this very function, again

    @functools.wraps(original)
    def query(device: Any = None, /) -> Any:
        if getattr(asking, "now", False):
            return original(device)
        reading = _ask(original, device)
        refused = judge([reading]).rejected
        if not refused:
            return reading.free, reading.total
        place = _place(device)
        asking.now = True
        try:
            memory = measure_device(place, reading).verdict.memory
        finally:
            asking.now = False
        if memory is None:
            return original(device)  # nothing better to say
        if str(place) not in warned:
            warned.add(str(place))
            why, source = refused[0].reason, memory.source
            logger.warning("arcpp: vLLM's memory query for %s %s; using %s", place, why, source)
        return memory.free, memory.total

    setattr(query, _MARK, True)
    return query


def _ask(original: Callable[..., Any], device: Any) -> Reading:
    try:
        free, total = original(device)
        return host_reading(int(total), int(free))
    except Exception as error:
        return host_reading(None, None, f"failed ({one_line(error)})")


def _place(device: Any) -> torch.device:
    """``device`` as vLLM may give it (None, index, text or device) as a torch device."""
    if device is None or isinstance(device, int):
        kind = torch.accelerator.current_accelerator()
        index = torch.accelerator.current_device_index() if device is None else device
        return torch.device(kind.type if kind is not None else "cpu", index)
    return torch.device(device)
