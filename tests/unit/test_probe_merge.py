"""Several sources, several cards, masks: one device each, with every host's number for it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.support.fake_intel import ARC_A770, Card, FakeCore, FakePyzes, fake_torch

from arcpp.backends.levelzero_devices import match, sysman_sightings
from arcpp.backends.openvino_devices import openvino_sightings
from arcpp.backends.torch_devices import torch_sightings
from arcpp.devices import AllocationLimit
from arcpp.probe import FoundDevice, Sighting, merge
from arcpp.probe.choose import devices_for
from arcpp.units import GiB

B580 = Card(pci="0000:83:00.0")
B70 = Card("Intel(R) Arc(TM) Pro B70 Graphics", pci="0000:03:00.0", total=30 * GiB)
IGPU = Card("Intel(R) Graphics", 0xA780, "0000:00:02.0", integrated=True)
A770S = [
    Card("Intel(R) Arc(TM) A770 Graphics", ARC_A770, f"0000:{bus}:00.0") for bus in ("03", "83")
]


def found(
    torch: Sequence[Card] = (),
    sysman: Sequence[Card] = (),
    openvino: Sequence[Card] = (),
    environment: dict[str, str] | None = None,
) -> tuple[FoundDevice, ...]:
    seen: list[Sighting] = [
        *torch_sightings(fake_torch(torch)),
        *(sysman_sightings(FakePyzes(sysman)) if sysman else []),
        *openvino_sightings(FakeCore(openvino)),
    ]
    return merge(seen, environment)


def test_every_source_numbers_its_own_way_and_the_address_joins_them() -> None:
    devices = found([B580, B70], [IGPU, B70, B580], [IGPU, B580, B70])
    assert [device.pci for device in devices] == ["0000:00:02.0", "0000:03:00.0", "0000:83:00.0"]
    assert [dict(device.numbers) for device in devices] == [
        {"levelzero": "0", "openvino": "GPU.0"},
        {"torch": "xpu:1", "levelzero": "1", "openvino": "GPU.2"},
        {"torch": "xpu:0", "levelzero": "2", "openvino": "GPU.1"},
    ]
    assert [device.usable for device in devices] == [False, True, True]
    assert all(device.by_order == () for device in devices)


def test_a_single_gpu_of_openvino_is_gpu_0() -> None:
    (device,) = found([B580], openvino=[B580])
    assert device.numbers == {"torch": "xpu:0", "openvino": "GPU.0"}


def test_memory_of_all_sources_is_weighed() -> None:
    card = Card(torch_free=0, sysman=(12 * GiB, 9 * GiB))
    (device,) = found([card], [card], [card])
    memory = device.verdict.memory
    assert memory is not None
    assert (memory.total, memory.free, memory.source) == (
        12 * GiB,
        9 * GiB,
        "Level Zero sysman",
    )
    assert len(device.verdict.rejected) == 2  # torch was asked in two ways


def test_a_mask_hides_cards_from_torch_only() -> None:
    devices = found([A770S[1]], A770S, environment={"ZE_AFFINITY_MASK": "1"})
    assert [device.numbers.get("torch") for device in devices] == [None, "xpu:0"]


@pytest.mark.parametrize("mask", [{"ZE_AFFINITY_MASK": "1"}, {"ONEAPI_DEVICE_SELECTOR": "*:1"}])
def test_without_addresses_equal_cards_are_told_apart_by_mask_and_order(
    mask: dict[str, str],
) -> None:
    bare = [Card(card.name, card.device_id, card.pci, uuid=False) for card in A770S]
    devices = found([bare[1]], bare, environment=mask)
    assert [device.numbers.get("torch") for device in devices] == [None, "xpu:0"]
    assert devices[1].by_order == ("torch",)


def test_what_cannot_be_told_apart_stays_apart() -> None:
    bare = [Card(card.name, card.device_id, card.pci, uuid=False) for card in A770S]
    devices = found([bare[0]], bare)  # one of two, and nothing says which
    assert len(devices) == 3


def test_two_unlike_cards_without_addresses_are_matched_by_model() -> None:
    cards = [
        Card("Intel(R) Arc(TM) A770 Graphics", ARC_A770, "0000:83:00.0", uuid=False),
        Card("Intel(R) Arc(TM) B580 Graphics", pci="0000:03:00.0", uuid=False),
    ]
    devices = found(cards, list(reversed(cards)))
    assert [device.numbers for device in devices] == [
        {"levelzero": "0", "torch": "xpu:1"},
        {"levelzero": "1", "torch": "xpu:0"},
    ]


def test_an_a770_has_a_limit_on_single_allocations() -> None:
    (device,) = found([A770S[0]])
    assert device.max_allocation == AllocationLimit(4 * GiB - 1, "compute-runtime#627")
    (chosen,) = devices_for([device], "vllm")
    assert chosen.name == "xpu:0"
    assert chosen.allocation_limit == device.max_allocation
    told = device.to_json()
    assert told["max_allocation_bytes"] == 4 * GiB - 1
    assert told["max_allocation_source"] == "compute-runtime#627"
    (device,) = found([B580])
    assert device.max_allocation is None


def test_a_source_that_shows_one_address_twice_shows_two_devices() -> None:
    twin = Sighting("torch", 0, "GPU", "xpu", number="xpu:0", pci="0000:03:00.0")
    other = Sighting("torch", 1, "GPU", "xpu", number="xpu:1", pci="0000:03:00.0")
    assert len(merge([twin, other])) == 2


def test_sysmans_card_for_a_torch_device(monkeypatch: pytest.MonkeyPatch) -> None:
    cards = sysman_sightings(FakePyzes([IGPU, B70, B580]))
    (_, second) = torch_sightings(fake_torch([B70, B580]))
    assert match(second, cards) == cards[2]
    bare = Sighting("torch", 0, "Intel(R) Arc(TM) B580 Graphics", "xpu", number="xpu:0")
    assert match(bare, cards) == cards[1]  # the integrated one does not count
    monkeypatch.setenv("ZE_AFFINITY_MASK", "2")
    assert match(bare, cards) == cards[2]
    elsewhere = Sighting("torch", 0, "GPU", "xpu", pci="0000:99:00.0")
    assert match(elsewhere, cards) is None


def test_devices_travel_as_json() -> None:
    from arcpp.probe.sighting import from_json

    (seen,) = torch_sightings(fake_torch([B580]))
    assert from_json(seen.to_json()) == seen
    (device,) = found([B580], [B580])
    assert device.to_json()["memory"]["free_bytes"] == 11 * GiB
