"""vLLM's own CPU worker, mended as little as it takes to run two stages without arcpp.

Stock vLLM 0.32.0 on the CPU dies at the first request with more than one stage; see
``shims.allocate_intermediate_tensors``. Nothing else is arcpp's: executor, partition, path.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.worker.cpu_worker import CPUWorker

from arcpp_vllm import shims


class StockWorker(CPUWorker):
    """With the buffer a later stage copies the boundary into."""

    def load_model(self, **kwargs: Any) -> None:
        """The base's; then the buffer."""
        super().load_model(**kwargs)
        shims.allocate_intermediate_tensors(self)
