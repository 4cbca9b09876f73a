"""Capacity and place of a stage's pool are those that its plan counted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from arcpp.devices import Device, DeviceMemory
from arcpp.errors import BadInput
from arcpp.memory.openvino import state_bytes
from arcpp.planner import PlanRequest, make_plan
from arcpp.profile import Layer, ModelProfile, load_profile
from arcpp.stage_state import place_bytes, pool_size, state_arrays
from arcpp.state import SlotPool
from arcpp.testing import NullTables
from arcpp.units import GiB

from .planner_models import BUNDLED, QWEN35_27B, write_config

CARDS = [Device(f"GPU.{index}", DeviceMemory(24 * GiB, 24 * GiB)) for index in range(2)]


@pytest.fixture
def large(tmp_path: Path) -> ModelProfile:
    return load_profile(write_config(tmp_path, QWEN35_27B), weights_dtype="int4")


@pytest.mark.parametrize("drafts", [0, 3])
def test_openvino_tables_take_what_the_plan_counted(large: ModelProfile, drafts: int) -> None:
    request = PlanRequest(host="openvino", max_num_seqs=4, spec_tokens=drafts)
    plan = make_plan(large, CARDS, request)
    size = pool_size(plan, drafts=drafts)
    assert (size.slots, size.ring, size.places) == (4, drafts + 1, 4 * (drafts + 1) + 1)
    for stage in plan.stages:
        arrays = state_arrays(large, stage.low, stage.high, columns=1, dtype="float32")
        assert size.places * place_bytes(arrays) == stage.state_bytes
        one = next(layer for layer in large.layers if layer.state is not None)
        assert state_bytes(one) == sum(array.nbytes for array in arrays[:2])


def test_arrays_follow_the_model(large: ModelProfile) -> None:
    arrays = state_arrays(large, 2, 6)
    assert [array.name for array in arrays] == [
        *("conv.2", "ssm.2", "conv.4", "ssm.4", "conv.5", "ssm.5")
    ]
    assert [(array.dtype, array.shape) for array in arrays[:2]] == [
        ("bfloat16", (3, 10240)),
        ("float32", (48, 128, 128)),
    ]
    assert place_bytes(arrays) == 3 * 3_207_168  # as vLLM allocates it
    assert state_arrays(large, 3, 4) == ()


def test_a_pool_of_the_bundled_model_is_as_large_as_its_plan() -> None:
    profile = load_profile(BUNDLED)
    plan = make_plan(profile, CARDS[:1], PlanRequest(max_num_seqs=5))
    size = pool_size(plan, drafts=1, snapshots=2)
    tables = NullTables(state_arrays(profile, 0, len(profile.layers)), size.places)
    pool = SlotPool(tables, size)
    for owner in range(plan.max_num_seqs):
        pool.acquire(owner)
    assert (pool.available, pool.snapshots_available) == (0, 2)


def test_what_cannot_be_is_refused(large: ModelProfile) -> None:
    plan = make_plan(large, CARDS, PlanRequest())
    for wrong in ({"drafts": -1}, {"snapshots": -1}):
        with pytest.raises(BadInput, match="is negative"):
            pool_size(plan, **wrong)
    for dtype in ("int8", "float8_e5m2"):
        with pytest.raises(BadInput, match="state dtype"):
            state_arrays(large, 0, 1, dtype=dtype)
    tiny = replace(large, dtype="float8_e5m2", layers=(_without_dtype(large),))
    with pytest.raises(BadInput, match="too small"):
        state_arrays(tiny, 0, 1)


def _without_dtype(profile: ModelProfile) -> Layer:
    layer = profile.layers[0]
    assert layer.state is not None
    return replace(layer, state=replace(layer.state, ssm_dtype=None))
