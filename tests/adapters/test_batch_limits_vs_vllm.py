"""The planner's bound on requests at once against vLLM's own SchedulerConfig."""

from __future__ import annotations

import pytest

from arcpp.errors import BadInput
from arcpp.planner import PlanRequest

pytest.importorskip("vllm")


@pytest.mark.parametrize("sequences", [1, 8, 255, 256, 257, 2048, 2049])
@pytest.mark.parametrize("tokens", [1, 8, 256, 2048])
def test_what_vllm_refuses_is_not_planned(sequences: int, tokens: int) -> None:
    from vllm.config import SchedulerConfig

    def refused_by_vllm() -> bool:
        try:
            SchedulerConfig(
                max_model_len=4096,
                is_encoder_decoder=False,
                max_num_seqs=sequences,
                max_num_batched_tokens=tokens,
            )
        except ValueError:
            return True
        return False

    def refused_by_us() -> bool:
        try:
            PlanRequest(max_num_seqs=sequences, max_num_batched_tokens=tokens)
        except BadInput:
            return True
        return False

    assert refused_by_us() == refused_by_vllm() == (sequences > tokens)
