"""PCI addresses, UUIDs and masks: the numbers of several cards stay right."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.fake_intel import Card

from arcpp.probe.identity import (
    affinity_mask,
    device_selector,
    hex_uuid,
    pci_address,
    pci_from_intel_uuid,
    short_name,
    visible_cards,
)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("0000:03:00.0", "0000:03:00.0"),
        ("03:00.0", "0000:03:00.0"),
        ("0000:AF:1f.7", "0000:af:1f.7"),
        ("00000001:03:00.0", "0001:03:00.0"),
        ("GPU.0", None),
        ("", None),
        (None, None),
    ],
)
def test_addresses_are_written_one_way(text: object, address: str | None) -> None:
    assert pci_address(text) == address


def test_an_intel_uuid_holds_the_address() -> None:
    card = Card(pci="0001:8f:03.2")
    assert pci_from_intel_uuid(card.uuid_bytes.hex()) == "0001:8f:03.2"


@pytest.mark.parametrize("uuid", [None, "", "00" * 16, "de10" + "11" * 14, "8680" + "ff" * 14])
def test_other_uuids_hold_none(uuid: str | None) -> None:
    assert pci_from_intel_uuid(uuid) is None


def test_uuids_are_compared_as_digits() -> None:
    text = "GPU-8680a056-0000-0000-0300-000000000000"
    assert hex_uuid(text) == hex_uuid(text.removeprefix("GPU-").upper())
    assert hex_uuid("0" * 32) is None
    assert hex_uuid(None) is None


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("Intel(R) Arc(TM) B580 Graphics", "B580"),
        ("Intel(R) Arc(TM) A770 Graphics", "A770"),
        ("Intel(R) Arc(TM) Pro B70 Graphics", "B70"),
        ("Intel Arc Pro B60", "B60"),
        ("Intel(R) UHD Graphics 770", None),
        ("NVIDIA H200", None),
    ],
)
def test_models_are_found_in_marketing_names(name: str, model: str | None) -> None:
    assert short_name(name) == model


@pytest.mark.parametrize(
    ("value", "cards"),
    [(None, None), ("", None), ("0", (0,)), ("1,0", (0, 1)), ("0.1,2.0", (0, 2)), ("x", None)],
)
def test_affinity_masks(value: str | None, cards: tuple[int, ...] | None) -> None:
    assert affinity_mask(value) == cards


@pytest.mark.parametrize(
    ("value", "cards"),
    [
        (None, (0, 1, 2)),
        ("", (0, 1, 2)),
        ("*:*", (0, 1, 2)),
        ("level_zero:gpu", (0, 1, 2)),
        ("level_zero:1", (1,)),
        ("level_zero:2,0", (0, 2)),
        ("opencl:*", ()),
        ("opencl:cpu;level_zero:0", (0,)),
        ("!level_zero:0", (1, 2)),
        ("level_zero:*;!level_zero:1", (0, 2)),
        ("level_zero:7", ()),
        ("nonsense", ()),
    ],
)
def test_device_selectors(value: str | None, cards: tuple[int, ...]) -> None:
    assert device_selector(value, 3) == cards


@pytest.mark.parametrize(
    ("integrated", "mask", "selector", "shown"),
    [
        ((False, False), None, None, (0, 1)),
        ((True, False, False), None, None, (1, 2)),  # torch drops the integrated one
        ((True,), None, None, (0,)),  # unless there is no other
        ((True, False, False), "0,2", None, (2,)),
        ((True, False, False), "0", None, (0,)),
        ((False, False, False), "1,2", "level_zero:1", (2,)),  # selectors count what masks leave
    ],
)
def test_what_torch_shows_under_masks(
    integrated: tuple[bool, ...], mask: str | None, selector: str | None, shown: tuple[int, ...]
) -> None:
    assert visible_cards(integrated, mask, selector) == shown


@given(st.text(max_size=30), st.text(max_size=30), st.lists(st.booleans(), max_size=5))
def test_any_mask_leaves_cards_that_are_there(mask: str, selector: str, cards: list[bool]) -> None:
    shown = visible_cards(cards, mask, selector)
    assert list(shown) == sorted(set(shown))
    assert all(0 <= number < len(cards) for number in shown)
