"""A refusal says in a table what every stage would need."""

from __future__ import annotations

import pytest
from tests.support.vllm_server import HYBRID_MODEL

from arcpp.devices import Device, DeviceMemory
from arcpp.errors import DoesNotFit
from arcpp.planner import PlanRequest, make_plan
from arcpp.profile import load_profile
from arcpp.report import WIDTH, needs_text


def test_needs_add_up_and_show_who_is_short() -> None:
    devices = [
        Device("B70", DeviceMemory(100 << 20, 100 << 20)),
        Device("B580", DeviceMemory(30 << 20, 30 << 20)),
    ]
    with pytest.raises(DoesNotFit) as caught:
        make_plan(load_profile(HYBRID_MODEL), devices, PlanRequest(max_model_len=32768))
    error = caught.value
    short = error.needs[error.stage or 0]
    assert [need.device for need in error.needs] == ["B70", "B580"]
    assert error.needs[0].high == error.needs[1].low
    assert short.total - short.budget == error.missing_bytes
    lines = needs_text(error.needs).splitlines()
    assert len(lines) == 4
    assert max(map(len, lines)) <= WIDTH
    assert "B580" in lines[2]
