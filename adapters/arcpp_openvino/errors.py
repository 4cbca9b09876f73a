"""Errors of the engine's stages."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from arcpp.errors import ArcppError, NonFinite
from arcpp.supervise import Fault, classify
from arcpp.supervise.fault import shortened


class StageFailed(ArcppError):
    """A stage could not be made, or did not finish a step.

    fault: what is known of it, with stage and device. doing: "compile", "allocate" or "step".
    """

    def __init__(self, fault: Fault, doing: str) -> None:
        self.fault, self.doing = fault, doing
        super().__init__(str(fault))

    @property
    def stage(self) -> int | None:
        """Index of the stage."""
        return self.fault.stage

    @property
    def device(self) -> str | None:
        """OpenVINO's name of its device."""
        return self.fault.device


class StepNotFinite(NonFinite):
    """Logits that are not finite: state or KV of their sequences cannot be used any more.

    rows: which. logits: of all rows, as collect() would have returned them; the others are good.
    stage: the first whose output is not finite.
    """

    def __init__(self, rows: tuple[int, ...], logits: NDArray[np.float32], stage: int) -> None:
        self.rows, self.logits = rows, logits
        shown = ", ".join(map(str, rows[:8])) + (", ..." if len(rows) > 8 else "")
        super().__init__(f"logits of rows {shown}, from stage {stage} on", stage=stage)


def stage_failed(error: BaseException, *, stage: int, device: str, doing: str) -> StageFailed:
    """``error`` as StageFailed. Raise it ``from error``."""
    if isinstance(error, RuntimeError):  # all that OpenVINO raises
        return StageFailed(classify(text=reason(error), device=device, stage=stage), doing)
    return StageFailed(classify(error, device=device, stage=stage), doing)


def reason(error: BaseException) -> str:
    """What OpenVINO says, less the places in its sources that it starts with."""
    lines = [line.strip() for line in str(error).splitlines()]
    said = [line for line in lines if line and not line.startswith(("Exception from ", "Check '"))]
    return "\n".join(said or [line for line in lines if line]) or type(error).__name__


def last_line(error: BaseException) -> str:
    """The last line of reason(), for a one-line error."""
    return shortened(reason(error).splitlines()[-1], 160)
