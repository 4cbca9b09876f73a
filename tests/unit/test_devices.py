"""Declared devices: NAME=TOTAL[:FREE][@GBPS], and figures that cannot be are refused."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arcpp.devices import Device, DeviceMemory, check_memory, parse_device
from arcpp.errors import BadInput
from arcpp.units import GiB, MiB


@pytest.mark.parametrize(
    ("text", "device"),
    [
        ("B580=12GiB", Device("B580", DeviceMemory(12 * GiB, 12 * GiB))),
        ("B580=12GiB:11GiB", Device("B580", DeviceMemory(12 * GiB, 11 * GiB))),
        ("B580=12GiB@456", Device("B580", DeviceMemory(12 * GiB, 12 * GiB), 456.0)),
        ("B580=11605MiB:11.0GiB@456.5",
         Device("B580", DeviceMemory(11605 * MiB, 11 * GiB), 456.5)),
        (" xpu:1 = 16 GiB : 15 GiB @ 560 ",
         Device("xpu:1", DeviceMemory(16 * GiB, 15 * GiB), 560.0)),
        ("a@b=1024", Device("a@b", DeviceMemory(1024, 1024))),
    ],
)  # fmt: skip
def test_the_declared_grammar(text: str, device: Device) -> None:
    assert parse_device(text) == device


@pytest.mark.parametrize(
    "text",
    ["", "B580", "=12GiB", "B580=", "B580=@456", "B580=:4GiB", "B580=12GiB:", "B580=12GiB@"],
)
def test_another_form_shows_the_form_to_use(text: str) -> None:
    with pytest.raises(BadInput, match=r"is not NAME=TOTAL\[:FREE\]\[@GBPS\]") as caught:
        parse_device(text)
    assert caught.value.value == text


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("B580=lots", "--device B580: total"),
        ("B580=A770=16GiB", "--device B580: total"),
        ("B580=-1", "--device B580: total"),
        ("B580=nan", "--device B580: total"),
        ("B580=9999TiB", "--device B580: total"),
        ("B580=12GiB:lots", "--device B580: free"),
        ("B580=12GiB:11GiB:10GiB", "--device B580: free"),
        ("B580=0", "device B580"),
        ("B580=0:0", "device B580"),
        ("B580=12GiB:0", "device B580"),
        ("B580=0.4B", "device B580"),
        ("B580=11GiB:12GiB", "device B580"),
        ("B580=12GiB@0", "--device B580: bandwidth"),
        ("B580=12GiB@-456", "--device B580: bandwidth"),
        ("B580=12GiB@nan", "--device B580: bandwidth"),
        ("B580=12GiB@inf", "--device B580: bandwidth"),
        ("B580=12GiB@1e6", "--device B580: bandwidth"),
        ("B580=12GiB@456@456", "--device B580: bandwidth"),
        ("B580=12GiB@fast", "--device B580: bandwidth"),
    ],
)
def test_the_part_that_is_wrong_is_named(text: str, what: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse_device(text)
    assert caught.value.what == what
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(("total", "free"), [(0, 0), (-1, 0), (8, 0), (8, -8), (8, 9), (0, 8)])
def test_memory_that_cannot_be_is_refused(total: int, free: int) -> None:
    with pytest.raises(BadInput, match="device xpu:0"):
        check_memory("xpu:0", total, free)


def test_memory_that_can_be_is_not() -> None:
    check_memory("xpu:0", 8, 8)
    check_memory("xpu:0", 8, 1)


@given(st.text(max_size=40) | st.from_regex(r"\A[a-z]{1,3}=[0-9a-zA-Z.:@ -]{0,20}\Z"))
def test_any_text_is_a_device_or_a_refusal(text: str) -> None:
    try:
        device = parse_device(text)
    except BadInput:
        return
    assert 0 < device.memory.free <= device.memory.total
    assert device.bandwidth_gb_s is None or 0 < device.bandwidth_gb_s < 1e6


def test_a_name_with_a_line_break_keeps_the_message_on_one_line() -> None:
    with pytest.raises(BadInput) as caught:
        parse_device("B5\n80=lots")
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("gbps", ["4_5_6", "\u0664\u0665\u0666"])
def test_bandwidth_is_plain_digits(gbps: str) -> None:
    with pytest.raises(BadInput):
        parse_device(f"B580=12GiB@{gbps}")


def test_values_do_not_change() -> None:
    device = parse_device("B580=12GiB")
    with pytest.raises(FrozenInstanceError):
        device.memory.free = 0  # type: ignore[misc]
    assert hash(device) == hash(parse_device("B580=12GiB"))


@pytest.mark.parametrize("name", ["A770", "a770 2", "Arc A750", "Intel Arc A770M", "Arc Pro A60"])
def test_alchemist_cards_allow_less_than_4_gib_at_once(name: str) -> None:
    limit = parse_device(f"{name}=15GiB").allocation_limit
    assert limit is not None
    assert limit.size == 4 * 1024**3 - 1


@pytest.mark.parametrize(
    "name", ["B580", "A100", "RTX A5000", "A7700", "xpu:0", "CPU", "NVIDIA A40"]
)
def test_of_other_names_no_limit_is_known(name: str) -> None:
    assert parse_device(f"{name}=15GiB").allocation_limit is None


@pytest.mark.parametrize("name", ["a\x1b[31m", "a\nb", "a\x00", "n" * 81])
def test_names_that_cannot_be_printed_are_refused(name: str) -> None:
    with pytest.raises(BadInput, match="printable"):
        parse_device(f"{name}=1GiB")
