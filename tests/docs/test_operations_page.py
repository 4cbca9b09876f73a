"""docs/operations.md is what its generator writes, and its figures in sentences are the code's."""

from __future__ import annotations

import re

import pytest
from tests.bench.plan_pairs import profile_of
from tests.docs.operations_page import ONE, PAGE, TABLES, long_request, renewed

from arcpp.planner import PlanRequest

TEXT = PAGE.read_text(encoding="utf-8")


def test_the_tables_are_not_stale() -> None:
    assert renewed(TEXT) == TEXT, "run: python -m tests.docs.operations_page"


def test_a_stale_table_would_be_noticed() -> None:
    assert renewed(TEXT.replace("MiB", "GiB", 9)) == TEXT
    for name in TABLES:
        assert len(re.findall(rf"<!-- {name} -->\n\|", TEXT)) == 1


@pytest.mark.parametrize(
    ("mode", "state", "others"), [("align", 6, "one more"), ("none", 3, "four")]
)
def test_the_long_request_is_as_it_says(mode: str, state: int, others: str) -> None:
    blocks, taken = long_request(mode)
    left = blocks - 1 - taken
    assert f"the pool has {blocks} blocks" in TEXT
    assert re.search(rf"{taken}( of them)? with\s+`{mode}`\s+\({state}", TEXT)
    assert f"{left} with `{mode}`" in TEXT
    assert f"{state + 1} with `{mode}`" in TEXT
    assert {"one more": 1, "four": 4}[others] == left // (state + 1)
    assert "one more request fits, or four" in TEXT


@pytest.mark.parametrize("mode", ["align", "none"])
def test_state_blocks_are_one_or_two_per_group(mode: str) -> None:
    profile = profile_of("QWEN35_27B", "bfloat16")
    request = PlanRequest(mamba_cache_mode=mode, prefix_caching=mode == "align")
    layout = request.layout(profile, ONE)
    assert layout.state_blocks() == 3 * (2 if mode == "align" else 1)
