"""The benchmark page keeps what was not measured again."""

from __future__ import annotations

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
