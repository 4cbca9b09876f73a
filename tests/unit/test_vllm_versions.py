"""Blocks and tokens of fourteen vLLM releases, as their own code computed them.

data/vllm-versions.json was made by running each release's get_kv_cache_configs in process on
specs of these models; test_plan_vs_vllm.py does the same live for the pinned release.
"""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from arcpp.devices import Device, DeviceMemory
from arcpp.errors import DoesNotFit
from arcpp.partition import even_split
from arcpp.planner import PlanRequest, make_plan
from arcpp.profile import load_profile
from arcpp.units import GiB

from . import planner_models

DATA = json.loads((Path(__file__).parent / "data" / "vllm-versions.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def profiles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    made = {}
    for name in DATA["models"]:
        folder = tmp_path_factory.mktemp(name)
        config = planner_models.write_config(folder, getattr(planner_models, name))
        made[name] = load_profile(config)
    return made


@pytest.mark.parametrize("version", DATA["results"])
def test_release(version: str, profiles: dict[str, Any]) -> None:
    cases = product(DATA["models"], (1, 2, 3), (True, False), DATA["settings"])
    results = DATA["results"][version]
    assert len(results) == 84
    for (model, stages, caching, (block, length)), right in zip(cases, results, strict=True):
        request = PlanRequest(
            version=version,
            partition=even_split(len(profiles[model].layers), stages).counts,
            block_size=block,
            prefix_caching=caching,
            max_model_len=length,
            platform="cuda",
            kv_memory=(9 * GiB,),
            inside_host=True,  # the data are of synchronous scheduling, as under arcpp's executor
        )
        memory = DeviceMemory(1024 * GiB, 1024 * GiB)
        devices = [Device(f"d{index}", memory) for index in range(stages)]
        try:
            plan = make_plan(profiles[model], devices, request)
        except DoesNotFit:
            assert right is None
            continue
        assert [plan.num_blocks, plan.kv_cache_tokens] == right, (model, stages, caching, block)
