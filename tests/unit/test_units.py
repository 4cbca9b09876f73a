"""Sizes: what the grammar allows is exact, everything else is one clear refusal."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arcpp.errors import BadSize
from arcpp.units import GiB, KiB, MiB, format_gib, parse_size, size_span

FACTORS = {
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
PEBIBYTE = 2**50


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("17179869184", 16 * GiB),
        ("007", 7),
        (16 * GiB, 16 * GiB),
        ("16GiB", 16 * GiB),
        ("16 GiB", 16 * GiB),
        ("  16gib ", 16 * GiB),
        ("16GIB", 16 * GiB),
        ("16GB", 16 * 10**9),
        ("11605MiB", 11605 * MiB),
        ("12.5KB", 12500),
        (".5KiB", 512),
        ("0.001KB", 1),
        ("1.9B", 1),
        ("1TiB", 1024 * GiB),
        ("1024TiB", PEBIBYTE),
        (str(PEBIBYTE), PEBIBYTE),
    ],
)
def test_the_grammar(text: str | int, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "lots",
        "16 GB?",
        "16G",
        "16GiBs",
        "16 GiB 3 MiB",
        "1e3GB",
        "1e3",
        "1.5",
        "1.GiB",
        ".GiB",
        "1..5GiB",
        "1,5GiB",
        "1_000",
        "-1",
        "+1",
        "-1GiB",
        "0x10",
        "inf",
        "infGiB",
        "nan",
        "GiB",
        "\u0661\u0666GiB",  # digits, but not these
        "\u0661\u0666",
        "\uff11\uff16GB",
        "\u00b2GB",
        "16\u212aB",  # the Kelvin sign is a k to a regular expression that ignores case
        "16GiB\x00",
        "9" * 41,
        "1" + "0" * 100_000,
        -1,
        True,
        None,
        1.5,
        b"16GiB",
        ["16GiB"],
    ],
)
def test_anything_else_is_refused_in_one_line(text: object) -> None:
    with pytest.raises(BadSize) as caught:
        parse_size(text, "--margin")  # type: ignore[arg-type]
    assert caught.value.what == "--margin"
    assert caught.value.value is text
    assert str(caught.value).startswith("--margin: ")
    assert len(str(caught.value).splitlines()) == 1
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    "text", [str(PEBIBYTE + 1), PEBIBYTE + 1, "1025TiB", "9" * 40, "9" * 30 + "TB"]
)
def test_more_than_a_pebibyte_is_a_typing_error(text: str | int) -> None:
    with pytest.raises(BadSize, match="larger than any device"):
        parse_size(text)


def test_a_number_too_long_to_print_is_refused_as_well() -> None:
    with pytest.raises(BadSize):
        parse_size(10**5000)


@given(st.integers(0, PEBIBYTE))
def test_bytes_go_through_unchanged(size: int) -> None:
    assert parse_size(size) == parse_size(str(size)) == parse_size(f"{size}B") == size


@given(
    whole=st.text("0123456789", max_size=12),
    decimals=st.none() | st.text("0123456789", min_size=1, max_size=12),
    space=st.sampled_from(["", " ", "  "]),
    unit=st.sampled_from(sorted(FACTORS)),
    upper=st.booleans(),
)
def test_a_number_with_a_unit_is_exact_and_rounded_down(
    whole: str, decimals: str | None, space: str, unit: str, upper: bool
) -> None:
    number = whole if decimals is None else f"{whole}.{decimals}"
    text = number + space + (unit.upper() if upper else unit)
    if not number:
        with pytest.raises(BadSize):
            parse_size(text)
        return
    exact = Fraction(number if not number.startswith(".") else "0" + number) * FACTORS[unit]
    if exact >= PEBIBYTE + 1:
        with pytest.raises(BadSize):
            parse_size(text)
    else:
        assert parse_size(text) == int(exact)


@pytest.mark.parametrize("text", ["1." + "9" * 34 + "B", "0." + "9" * 34 + "GiB"])
def test_many_decimals_are_rounded_down_too(text: str) -> None:
    number, unit = text.rstrip("GiB"), text.lstrip("0123456789.").lower()
    assert parse_size(text) == int(Fraction(number) * FACTORS[unit])


@given(st.text(max_size=60))
def test_any_text_is_a_size_or_a_refusal(text: str) -> None:
    try:
        size = parse_size(text)
    except BadSize as error:
        size, lines = 0, str(error).splitlines()
    else:
        lines = [str(size)]
    assert 0 <= size <= PEBIBYTE
    assert len(lines) == 1


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0.00"), (GiB, "1.00"), (16 * GiB + 128 * MiB, "16.12"), (KiB, "0.00"), (-GiB, "-1.00")],
)
def test_people_read_gib(size: int, text: str) -> None:
    assert format_gib(size) == text


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("1024", 1024, 1024),
        ("16GiB", 16 * GiB, 16 * GiB),
        ("1.0KB", 950, 1050),
        ("0.58GiB", 617_401_549, 628_138_968),
        ("0.0MB", 0, 50_000),
        (" .5 kb", 450, 550),
    ],
)
def test_span_of_what_may_have_been_rounded(text: str, low: int, high: int) -> None:
    assert size_span(text) == (low, high)
