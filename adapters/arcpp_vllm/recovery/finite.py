"""Non-finite values are a fault, not a token.

Symptom: NaN in linear-attention kernels at some lengths, or a card about to be lost, streams "!"
for ever (field reports; vLLM counts NaNs in logits on request and goes on). Here what a stage
receives and the logits are reduced to one flag on the device while the step runs; the flag is
read when the step's result has been waited for anyway, before a token leaves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from arcpp.errors import NonFinite


class FiniteCheck:
    """Flags of one stage's current step. Not thread-safe: a worker runs one step at a time."""

    def __init__(self, stage: int) -> None:
        self._stage = stage
        self._flags: list[tuple[str, torch.Tensor]] = []

    def look(self, where: str, tensors: Mapping[str, torch.Tensor]) -> None:
        """Note whether all of ``tensors`` are finite; no wait for the device."""
        for name, tensor in tensors.items():
            if tensor.is_floating_point() and tensor.numel():
                least, most = torch.aminmax(tensor)  # both are NaN where any value is
                finite = torch.isfinite(least) & torch.isfinite(most)
                self._flags.append((f"{where}: {name}", finite))

    def look_at_logits(self, logits: torch.Tensor | None) -> None:
        """Note whether ``logits`` hold a NaN; -inf is a way to forbid a token."""
        if logits is not None and logits.numel():
            self._flags.append(("logits", ~torch.isnan(torch.amax(logits))))

    def settle(self, step: int | None = None) -> None:
        """Raise NonFinite for the first flag that is down; forget them all."""
        flags, self._flags = self._flags, []
        for where, finite in flags:
            if not bool(finite):
                raise NonFinite(where, stage=self._stage, step=step)

    def watch_logits(self, model: Any) -> None:
        """Look at everything ``model.compute_logits`` returns."""
        original = model.compute_logits

        def compute_logits(*args: Any, **kwargs: Any) -> Any:
            logits = original(*args, **kwargs)
            self.look_at_logits(logits)
            return logits

        model.compute_logits = compute_logits
