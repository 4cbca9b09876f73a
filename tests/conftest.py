"""No test may set the hosts' or arcpp's variables for those after it: servers inherit them."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# Hypothesis would fail an example after 200 ms: no test asks how fast the machine is.
settings.register_profile("arcpp", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("arcpp")

_OURS = ("ARCPP_", "VLLM_PP_")


def _set() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith(_OURS)}


@pytest.fixture(autouse=True, scope="module")
def _environment_left_as_found() -> Iterator[None]:
    before = _set()
    yield
    left = _set()
    for name in left.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)
    assert left == before, "a test of this module changed the environment of those after it"
