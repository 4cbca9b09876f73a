"""Copies on a device with streams that is stuck, or closed too early; which pages are unpinned."""

from __future__ import annotations

import gc
import time
from typing import Any

import pytest

from arcpp.errors import DeadlineExceeded
from arcpp.link import RingOptions, Verification, open_ring_pair
from arcpp.link.ring import Geometry

torch = pytest.importorskip("torch")
fake = pytest.importorskip("tests.support.fake_device")
streams = pytest.importorskip("arcpp.backends.torch_stream_staging")
staging_on_cpu = pytest.importorskip("arcpp.backends.torch_staging").staging_for
Pinning = pytest.importorskip("arcpp.backends.pinning").Pinning

PINNINGS = ("registered", "bounce", "pageable")
SMALL, LARGE, PIECES = 100, 50_000, 200_000  # bytes: in one copy, in chunks, in several slots


class Ring:
    """Ends in one thread, one of them on a device that can be stuck; pins: what became of pages."""

    def __init__(
        self, pinning: str, sends: bool, verification: Verification = Verification.DEVICE
    ) -> None:
        self.pins: list[str] = []
        self.runtime = fake.FakeRuntime(seed=1)

        def pin(address: int, nbytes: int, place: Any) -> Any:
            self.pins.append("pinned")
            return Pinning(pinning, lambda: self.pins.append("released"))

        options = RingOptions(geometry=Geometry(4, 64 << 10), verification=verification)
        place = torch.device("cpu", 0)
        staging = streams.StreamStaging(place, pin, fake.CHUNK, self.runtime)
        ends = (staging, staging_on_cpu("cpu")) if sends else (staging_on_cpu("cpu"), staging)
        self.sender, self.receiver = open_ring_pair("a", *ends, options)

    def close(self) -> None:
        with fake.FakeDevice(self.runtime):
            self.sender.close()
            self.receiver.close()


@pytest.mark.parametrize("size", [SMALL, LARGE, PIECES])
@pytest.mark.parametrize("pinning", PINNINGS)
def test_a_copy_out_that_does_not_finish_ends_at_the_deadline(pinning: str, size: int) -> None:
    ring = Ring(pinning, sends=True)
    ring.runtime.stuck = True
    started = time.monotonic()
    with (
        fake.FakeDevice(ring.runtime),
        pytest.raises(DeadlineExceeded, match="cpu:0 does not finish its copy"),
    ):
        ring.sender.send({"x": torch.zeros(size, dtype=torch.uint8)}, timeout=0.2)
    assert 0.2 <= time.monotonic() - started < 2
    with pytest.raises(DeadlineExceeded, match="does not finish what it announced"):
        ring.receiver.recv(timeout=0.1)
    before = len(streams._LEFT)
    started = time.monotonic()
    ring.close()
    assert time.monotonic() - started < 4
    assert ring.pins == ["pinned"], "pages that a copy may still use stay pinned"
    assert len(streams._LEFT) == before + 1, "and mapped"
    streams._LEFT.pop()


@pytest.mark.parametrize("size", [SMALL, LARGE])
@pytest.mark.parametrize("pinning", PINNINGS)
def test_a_copy_in_that_does_not_finish_is_noticed_by_its_checksum(pinning: str, size: int) -> None:
    ring = Ring(pinning, sends=False)
    ring.runtime.stuck = True
    ring.sender.send({"x": torch.zeros(size, dtype=torch.uint8)}, timeout=2)
    with (
        fake.FakeDevice(ring.runtime),
        pytest.raises(DeadlineExceeded, match="cpu:0 does not finish its copy"),
    ):
        ring.receiver.recv(timeout=0.2)
    ring.close()


@pytest.mark.parametrize("size", [SMALL, LARGE])
@pytest.mark.parametrize("pinning", PINNINGS)
def test_without_one_it_is_the_streams_business_and_its_pages_stay(pinning: str, size: int) -> None:
    ring = Ring(pinning, sends=False, verification=Verification.DESCRIPTOR)
    ring.runtime.stuck = True
    ring.sender.send({"x": torch.ones(size, dtype=torch.uint8)}, timeout=2)
    before = len(streams._LEFT)
    with fake.FakeDevice(ring.runtime):
        got = ring.receiver.recv(timeout=0.2)
    ring.close()
    assert ring.pins == ["pinned"]
    assert len(streams._LEFT) == before + 1
    ring.runtime.stuck = False
    with fake.FakeDevice(ring.runtime):
        assert int(got["x"].sum()) == size, "the copy was made after the end was closed"
    streams._LEFT.pop()


@pytest.mark.parametrize("pinning", PINNINGS)
def test_a_hundred_links_leave_no_page_pinned_and_none_mapped(pinning: str) -> None:
    for number in range(100):
        ring = Ring(pinning, sends=number % 2 == 0)
        with fake.FakeDevice(ring.runtime):
            ring.sender.send({"x": torch.full((SMALL,), number)}, timeout=2)
            got = ring.receiver.recv(timeout=2)
            ring.sender.send({"x": torch.full((SMALL,), number)}, timeout=2)
            assert int(got["x"].sum()) == number * SMALL
        ring.close()
        ring.close()
        assert ring.pins == ["pinned", "released"]
        del got, ring
    gc.collect()
    with open("/proc/self/maps") as maps:
        assert "memfd:arcpp" not in maps.read()


def test_memory_of_another_stream_is_not_used() -> None:
    """A hop that was prepared on one stream is made anew when the caller is on another by then."""
    ring = Ring("registered", sends=False)
    ring.close()
    staging = streams.StreamStaging(
        torch.device("cpu", 0), lambda *_: Pinning("registered", lambda: None), 1024, ring.runtime
    )
    layout = staging.layout({"x": torch.zeros(8)})
    incoming = staging.begin(layout, time.monotonic() + 1)
    assert incoming.is_current()
    with ring.runtime.stream(ring.runtime.Stream()):
        assert not incoming.is_current()
