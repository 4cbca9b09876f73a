"""Which state blocks are zeroed before a step, and which are looked at after it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

import torch

from arcpp.backends.torch_state import TorchTables
from arcpp.errors import NonFinite, StateCorrupt
from arcpp.settings import Settings
from arcpp_vllm.recovery.finite import FiniteCheck
from arcpp_vllm.state_canary import Canary
from arcpp_vllm.state_guard import StateGuard, logger

BLOCKS = 12


def guard(requests: dict[str, Any] | None = None, **settings: Any) -> StateGuard:
    """Group 0 is attention's; groups 1 and 2 have state, strided as pages of a pool are."""
    made = StateGuard.__new__(StateGuard)
    made._runner = SimpleNamespace(requests=requests or {})
    made._settings, made._steps = Settings(**settings), 0
    made.groups = {
        number: TorchTables({"conv": torch.ones(BLOCKS, 8)[:, 2:5], "ssm": torch.ones(BLOCKS, 4)})
        for number in (1, 2)
    }
    return made


def step(
    new: list[tuple[int, tuple[list[int], ...]]] | None = None,
    resumed: dict[str, tuple[int, tuple[list[int], ...] | None]] | None = None,
    running: tuple[str, ...] = (),
) -> Any:
    resumed = resumed or {}
    cached = SimpleNamespace(
        req_ids=[*resumed, *running],
        resumed_req_ids=set(resumed),
        num_computed_tokens=[*(n for n, _ in resumed.values()), *(5 for _ in running)],
        new_block_ids=[*(blocks for _, blocks in resumed.values()), *(None for _ in running)],
    )
    return SimpleNamespace(
        scheduled_new_reqs=[
            SimpleNamespace(req_id="a", num_computed_tokens=computed, block_ids=blocks)
            for computed, blocks in new or ()
        ],
        scheduled_cached_reqs=cached,
        num_scheduled_tokens=dict.fromkeys([*resumed, *running], 1),
    )


def zeroed(made: StateGuard, group: int) -> set[int]:
    return {block for block in range(BLOCKS) if made.groups[group].are_zero([block])}


def test_those_that_begin_are_zeroed_in_their_groups_and_no_others() -> None:
    made = guard()
    made.before_step(
        step(
            new=[(0, ([1], [2, 3], [4])), (256, ([5], [6], [7]))],
            resumed={"again": (0, ([8], [9], [10])), "cached": (256, ([1], [11], [11]))},
            running=("other",),
        )
    )
    assert zeroed(made, 1) == {2, 3, 9}
    assert zeroed(made, 2) == {4, 10}


def test_the_null_block_is_nobodys() -> None:
    made = guard()
    made.before_step(step(new=[(0, ([1], [0, 0, 5], [0]))]))
    assert zeroed(made, 1) == {5}
    assert zeroed(made, 2) == set()


def test_it_can_be_turned_off() -> None:
    made = guard(zero_state=False)
    made.before_step(step(new=[(0, ([1], [2], [3]))]))
    assert zeroed(made, 1) == zeroed(made, 2) == set()


@pytest.mark.parametrize(("every", "found_at"), [(1, 1), (3, 3), (0, None)])
def test_the_newest_state_of_a_request_is_looked_at(every: int, found_at: int | None) -> None:
    requests = {"a": SimpleNamespace(block_ids=([1], [2, 3, 0], [4]))}
    made, finite = guard(requests, state_check_every=every), FiniteCheck(1)
    made.groups[1].tensors["ssm"][2, 1] = float("nan")  # an older one: nobody reads it
    made.groups[1].tensors["conv"][3, 1] = float("nan")
    for number in range(1, 7):
        made.after_step(step(running=("a",)), finite)
        if number == found_at:
            with pytest.raises(NonFinite, match="state block 3: conv"):
                finite.settle()
            return
        finite.settle()
    assert found_at is None


def test_every_request_has_its_turn() -> None:
    names = tuple(f"r{number}" for number in range(11))
    requests = {
        name: SimpleNamespace(block_ids=([], [n + 1], [n + 1])) for n, name in enumerate(names)
    }
    made, finite = guard(requests, state_check_every=1), FiniteCheck(0)
    seen: set[str] = set()
    for _ in range(11):
        made.after_step(step(running=names), finite)
        seen |= {where.partition(":")[0] for where, _ in finite._flags}
        finite.settle()
    assert seen == {f"state block {number + 1}" for number in range(11)}


def test_a_step_without_tokens_is_no_step() -> None:
    """vLLM sends one to tell workers of finished requests."""
    made, finite = guard(state_check_every=1), FiniteCheck(0)
    for _ in range(3):
        made.before_step(step())
        made.after_step(step(), finite)
    assert not finite._flags


@pytest.mark.parametrize(("dtype", "said"), [(torch.float32, 0), (torch.bfloat16, 1)])
@pytest.mark.parametrize("rank", [0, 1])
def test_state_in_less_than_float32_is_said_once(
    monkeypatch: pytest.MonkeyPatch, rank: int, dtype: torch.dtype, said: int
) -> None:
    """By the first stage, for all groups: it may have no recurrent layer itself."""
    spec = SimpleNamespace(dtypes=(torch.bfloat16, dtype))
    groups = [
        SimpleNamespace(kv_cache_spec=SimpleNamespace(), layer_names=["attention"]),
        SimpleNamespace(kv_cache_spec=spec, layer_names=[]),
        SimpleNamespace(kv_cache_spec=spec, layer_names=[]),
    ]
    lines: list[str] = []
    monkeypatch.setattr(logger, "warning", lambda text, *given: lines.append(text % given))
    monkeypatch.setattr("arcpp_vllm.state_guard.get_layers_from_vllm_config", lambda *_: {})
    worker = SimpleNamespace(rank=rank, model_runner=None, vllm_config=None)
    StateGuard(worker, SimpleNamespace(kv_cache_groups=groups), Settings())
    assert len(lines) == (said if rank == 0 else 0)
    assert all("kept in bfloat16, not in float32" in line for line in lines)


def test_canaries_are_put_behind_a_request_that_begins_and_looked_at_after_its_step() -> None:
    requests = {"a": SimpleNamespace(block_ids=([1], [2, 3, 0], [4]))}
    made, finite = guard(requests), FiniteCheck(0)
    behind = torch.zeros(BLOCKS, 8, dtype=torch.uint8)
    made._canary = Canary({1: {"layer": behind}})
    begin = step(new=[(0, requests["a"].block_ids)])
    begin.num_scheduled_tokens = {"a": 5}
    made.before_step(begin)
    assert {block for block in range(BLOCKS) if behind[block].any()} == {3}
    made.after_step(begin, finite)
    behind[3, 0] = 1
    with pytest.raises(StateCorrupt, match="layer of request a: block 3"):
        made.after_step(step(running=("a",)), finite)
