"""The benchmark page keeps what was not measured again."""

from __future__ import annotations

from typing import Any

import pytest
from tests.bench import vllm_speed
from tests.bench.__main__ import SECTIONS, main, replaced, section


def test_a_section_is_replaced_and_the_others_stay() -> None:
    page = replaced("# Benchmarks\n", "one", "old\n")
    page = replaced(page, "two", "kept\n")
    page = replaced(page, "one", "new\n")
    assert "old" not in page
    assert page.index("new") < page.index("kept")
    assert page.startswith("# Benchmarks\n")
    assert page.count("<!-- begin") == page.count("<!-- end") == 2


def test_a_section_says_where_and_how_it_was_measured() -> None:
    text = section("plan-speed", "what it is", ["| a |"])
    assert "cores; Python" in text
    assert "`make bench SECTIONS=plan-speed`" in text


def test_an_unknown_section_is_one_line(capsys: object) -> None:
    assert "nonsense" not in SECTIONS
    assert main(["nonsense"]) == 1


def _round(seconds: dict[str, float], last: int = 7) -> dict[str, Any]:
    """What every engine of vllm-speed gives; ``last`` token of arcpp's first stream."""
    found: dict[str, Any] = {}
    for engine in vllm_speed.ENGINES:
        token = last if engine is vllm_speed.ARCPP else 7
        found[engine.name] = {
            str(batch): {
                "seconds": [batch * seconds.get(engine.name, 2.0)],
                "ids": [[5, token]] + [[5, 7]] * (batch - 1),
                "margins": [[3.0, 0.05]] + [[3.0, 3.0]] * (batch - 1),
            }
            for batch in (1, 8)
        }
    return found


def test_vllm_speed_compares_within_a_round() -> None:
    arcpp = vllm_speed.ARCPP.name
    rounds = [_round({arcpp: 1.0}), _round({arcpp: 1.6}), _round({arcpp: 2.0}, last=8)]
    row = vllm_speed.rows(rounds)[2]
    assert row == f"| {arcpp} | 80 | 80 | 1.25 (1.00 to 2.00) | 1.25 (1.00 to 2.00) | 7 of 9 |"


def test_vllm_speed_ends_at_wrong_tokens() -> None:
    found = _round({}, last=8)
    found[vllm_speed.ONE.name]["8"]["margins"][0] = [3.0, 3.0]
    with pytest.raises(RuntimeError, match="arcpp, 2 stages: prompt 0: differs at token 1"):
        vllm_speed.rows([found])
