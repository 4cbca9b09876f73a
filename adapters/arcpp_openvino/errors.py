"""Errors of the engine's stages."""

from __future__ import annotations

from arcpp.errors import ArcppError
from arcpp.supervise import Fault, classify


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


def stage_failed(error: BaseException, *, stage: int, device: str, doing: str) -> StageFailed:
    """``error`` as StageFailed. Raise it ``from error``."""
    return StageFailed(classify(error, device=device, stage=stage), doing)
