"""A pattern behind recurrent state: where it lies, and that writing past the state is seen."""

from __future__ import annotations

import pytest

pytest.importorskip("vllm")

import torch

from arcpp.errors import StateCorrupt
from arcpp_vllm.state_canary import Canary, behind

BLOCKS, PAGE = 6, 64


def pages() -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
    """Pages of 64 bytes, and in each a state as vLLM binds it: 6 bytes, then 32, then padding."""
    raw = torch.zeros(BLOCKS, PAGE, dtype=torch.int8)
    conv = raw[:, :8].view(torch.bfloat16)
    ssm = raw[:, 8:40].view(torch.float32)
    return raw, (conv, ssm)


def canary() -> tuple[torch.Tensor, Canary]:
    raw, arrays = pages()
    part = behind(arrays, PAGE)
    assert part is not None
    return raw, Canary({1: {"layers.0": part}})


def test_it_lies_behind_the_state_and_nowhere_else() -> None:
    raw, made = canary()
    made.arm("a", 1, 2)
    changed = raw.ne(0)
    assert changed[2, 40:].all()
    assert not changed[2, :40].any()
    assert changed.sum() == PAGE - 40


def test_a_state_that_fills_its_page_has_nothing_behind_it() -> None:
    _, arrays = pages()
    assert behind(arrays, 40) is None


def test_whoever_writes_past_a_state_is_found() -> None:
    raw, made = canary()
    made.arm("a", 1, 2)
    made.settle({("a", 1): 2, ("b", 1): 3})  # b is armed now
    raw[2, :40] = 7  # states may change
    made.settle({("a", 1): 2, ("b", 1): 3})
    raw[3, 40] = 7
    with pytest.raises(StateCorrupt, match=r"layers\.0 of request b: block 3"):
        made.settle({("a", 1): 2, ("b", 1): 3})


def test_blocks_that_changed_hands_are_not_looked_at() -> None:
    raw, made = canary()
    made.arm("a", 1, 2)
    raw[2] = 7  # given back, and attention's since
    made.settle({("b", 1): 4})
    made.settle({("a", 1): 2})  # armed again
    made.settle({("a", 1): 2})
    raw[4] = 7
    made.settle({("a", 1): 5})  # the newest moved on
    made.settle({("a", 1): 5, ("b", 1): 4})


def test_groups_without_room_are_left_out() -> None:
    _, made = canary()
    made.arm("a", 2, 1)
    made.settle({("a", 2): 1})
    made.settle({("a", 2): 1})
