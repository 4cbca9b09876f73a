"""Non-finite values are found wherever they are, and -inf in logits is none of them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("vllm")

import torch

from arcpp.errors import NonFinite
from arcpp_vllm.recovery.finite import FiniteCheck


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("at", [(0, 0), (3, 7), (1, 5)])
def test_one_value_in_a_boundary_is_enough(
    dtype: torch.dtype, value: float, at: tuple[int, int]
) -> None:
    check, hidden = FiniteCheck(1), torch.randn(4, 8).to(dtype)
    check.look("boundary stage0->stage1", {"hidden_states": hidden})
    check.settle()
    hidden[at] = value
    check.look("boundary stage0->stage1", {"residual": hidden.clone(), "ids": torch.arange(3)})
    with pytest.raises(NonFinite, match="boundary stage0->stage1: residual") as raised:
        check.settle(step=9)
    assert (raised.value.stage, raised.value.step) == (1, 9)
    check.settle()  # it is told once


def test_logits_may_forbid_tokens() -> None:
    check = FiniteCheck(0)
    logits = torch.randn(2, 16)
    logits[:, 3] = float("-inf")
    model = SimpleNamespace(compute_logits=lambda given: given)
    check.watch_logits(model)
    assert model.compute_logits(logits) is logits
    check.settle()
    logits[1, 4] = float("nan")
    model.compute_logits(logits)
    with pytest.raises(NonFinite, match="logits"):
        check.settle()


def test_nothing_is_nothing() -> None:
    check = FiniteCheck(0)
    check.look("boundary", {"empty": torch.empty(0, 8)})
    check.look_at_logits(None)
    check.settle()
