"""The parts of a ring on their own: layout, geometry, bells, waits, and telling a peer's death."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from arcpp.errors import LinkError
from arcpp.link import BoundarySpec, TensorSpec
from arcpp.link.frame import DTYPE_BYTES
from arcpp.link.layout import ALIGNMENT, contradiction, layout_of
from arcpp.link.meeting import Invitation, Liveness, Meeting
from arcpp.link.ring import (
    GEOMETRY_BYTES,
    Bell,
    Geometry,
    Gone,
    RingMemory,
    Stopped,
    Waiting,
    geometry_for,
)
from arcpp.link.segment import create_segment

MiB = 1 << 20
Ends = tuple[Liveness, socket.socket]
shapes = st.lists(st.integers(0, 40), max_size=4).map(tuple)
specs = st.lists(st.tuples(st.sampled_from(sorted(DTYPE_BYTES)), shapes), max_size=9).map(
    lambda each: tuple(TensorSpec(f"t{n}", *one) for n, one in enumerate(each))
)


@given(specs)
def test_tensors_lie_apart_aligned_and_in_order(tensors: tuple[TensorSpec, ...]) -> None:
    layout = layout_of(tensors)
    end = 0
    for spec, offset in zip(layout.specs, layout.offsets, strict=True):
        assert offset % ALIGNMENT == 0
        assert 0 <= offset - end < ALIGNMENT
        end = offset + spec.nbytes
    assert 0 <= layout.nbytes - end < ALIGNMENT
    assert (layout.nbytes == 0) == all(spec.nbytes == 0 for spec in tensors)


def one(dtype: str = "bfloat16", shape: tuple[int, ...] = (8, 4), name: str = "x") -> TensorSpec:
    return TensorSpec(name, dtype, shape)


@pytest.mark.parametrize("shape", [(8, 4), (1, 4), (0, 4)])
def test_up_to_the_agreed_rows_may_cross(shape: tuple[int, ...]) -> None:
    assert contradiction((one(shape=shape),), BoundarySpec((one(),))) is None


def test_a_tensor_that_nobody_spoke_of_may_cross() -> None:
    assert contradiction((one(name="y", dtype="int64"),), BoundarySpec((one(),))) is None
    assert contradiction((), BoundarySpec((one(),))) is None
    scalar = BoundarySpec((one(shape=()),))
    assert contradiction((one(shape=()),), scalar) is None
    assert contradiction((one(shape=(1,)),), scalar) is not None


@pytest.mark.parametrize(
    "spec",
    [one(shape=(9, 4)), one(shape=(8, 5)), one(shape=(8, 3)), one(shape=(8,)), one(shape=()),
     one(shape=(8, 4, 1)), one(shape=(1, 8, 4)), one("float16"), one("int16")],
    ids=str,
)  # fmt: skip
def test_anything_else_of_that_name_contradicts(spec: TensorSpec) -> None:
    said = contradiction((one(name="other"), spec), BoundarySpec((one(),)))
    assert said == (f"x is {spec.dtype}{list(spec.shape)}, at most bfloat16[8, 4] was agreed on")


@given(st.integers(0, 200 * MiB))
@example(0)
@example(256 << 10)
@example(4 * MiB)
@example(4 * MiB + 1)
@example(64 * MiB + 1)
def test_slots_hold_the_largest_hop_or_what_is_reasonable(largest: int) -> None:
    geometry = geometry_for(largest)
    assert geometry.room >= min(largest, 64 * MiB)
    assert geometry.room <= max(largest + 4096, 256 << 10)
    assert geometry.slots == (8 if geometry.room <= 4 * MiB else 4)
    assert Geometry.from_bytes(geometry.to_bytes()) == geometry


def test_a_hop_of_unknown_size_gets_the_usual_room() -> None:
    assert geometry_for(None) == Geometry(4, 16 * MiB)
    assert geometry_for(None, 3).slots == 3


@pytest.mark.parametrize(
    ("slots", "room"), [(0, 4096), (-1, 4096), (65, 4096), (4, 0), (4, -4096), (4, 4097), (4, 100)]
)
def test_what_is_no_geometry_is_refused(slots: int, room: int) -> None:
    with pytest.raises(ValueError, match=r"slots, not 1 to 64|not of whole pages"):
        Geometry(slots, room)


@given(st.binary(min_size=GEOMETRY_BYTES, max_size=GEOMETRY_BYTES))
@example(b"ARCPRING" + bytes(16))
@example(b"ARCPRING\x01\0\0\0\x04\0\0\0\x01\0\0\0\0\0\0\0")
def test_bytes_that_are_no_geometry_are_refused(carried: bytes) -> None:
    with pytest.raises(ValueError, match=r"geometry of a ring|slots, not|whole pages"):
        Geometry.from_bytes(carried)


@pytest.mark.parametrize("geometry", [Geometry(1, 4096), Geometry(64, 4096), Geometry(3, MiB)])
def test_nothing_in_a_segment_overlaps(geometry: Geometry) -> None:
    descriptor = create_segment(geometry.nbytes, link="a")
    memory = RingMemory(descriptor, geometry, "a")
    os.close(descriptor)
    words = [0, *range(16, 16 + 64), *memory.busy, *memory.filled]
    assert len(set(words)) == len(words)
    assert max(words) < len(memory.words)
    assert all(word % 8 == 0 for word in (*memory.busy, *memory.filled)), "a cache line each"
    areas = [(0, len(memory.words) * 8)]
    for slot in range(geometry.slots):
        sums, payload = memory.checksums_at[slot], memory.payload_at[slot]
        areas += [(sums - 4096, sums), (sums, payload), (payload, payload + geometry.room)]
    for (_, end), (start, _) in pairwise(areas):
        assert end == start
        assert start % 4096 == 0
    assert areas[-1][1] == geometry.nbytes
    for count in (0, 63, 64, 1000):
        memory.publish(count, count % geometry.slots)
        assert (memory.published, memory.entry(count)) == (count + 1, count % geometry.slots)
    memory.forget()
    memory.words[memory.busy[0]] = 0
    assert memory.map is None


def test_a_segment_of_another_size_is_refused() -> None:
    descriptor = create_segment(Geometry(2, 4096).nbytes, link="a")
    with pytest.raises(LinkError, match=r"^a: shared memory of "):
        RingMemory(descriptor, Geometry(2, 8192), "a")
    os.close(descriptor)


# Bells and waits.


@pytest.fixture(name="bell")
def _bell() -> Iterator[Bell]:
    bell = Bell()
    yield bell
    bell.close()


@pytest.fixture(name="ends")
def _ends() -> Iterator[Ends]:
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    liveness = Liveness(here)
    yield liveness, there
    liveness.close()
    there.close()


def test_a_bell_rings_once_for_many_rings_and_not_when_closed(bell: Bell) -> None:
    for _ in range(3):
        bell.ring()
    assert os.eventfd_read(bell.descriptor) == 3
    bell.hush()
    os.eventfd_write(bell.descriptor, 2**64 - 2)
    bell.ring()  # full: whoever waits wakes anyway
    bell.hush()
    bell.close()
    descriptor = os.eventfd(0, os.EFD_NONBLOCK)  # of the same number, most likely
    bell.ring()
    bell.close()
    with pytest.raises(BlockingIOError):
        os.eventfd_read(descriptor)
    os.close(descriptor)


def later(work: object, seconds: float = 0.05) -> threading.Timer:
    timer = threading.Timer(seconds, work)  # type: ignore[arg-type]
    timer.start()
    return timer


@pytest.mark.parametrize("spin", [0.0, 1.0], ids=["blocked", "spinning"])
def test_a_wait_ends_when_it_is_ready(bell: Bell, ends: Ends, spin: float) -> None:
    ready: list[int] = []
    timer = later(lambda: (ready.append(1), bell.ring()))
    Waiting(bell, ends[0], spin).until(lambda: bool(ready), time.monotonic() + 5)
    timer.join()


@pytest.mark.parametrize("timeout", [-1.0, 0.0, 0.0004, 0.1])
def test_a_wait_ends_at_its_deadline_and_not_before(bell: Bell, ends: Ends, timeout: float) -> None:
    bell.ring()  # of a hop before
    started = time.monotonic()
    with pytest.raises(TimeoutError):
        Waiting(bell, ends[0], 0.01).until(lambda: False, started + timeout)
    assert max(timeout, 0) <= time.monotonic() - started < 2


def test_a_wait_without_end_is_possible(bell: Bell, ends: Ends) -> None:
    timer = later(ends[1].close)
    with pytest.raises(Gone):
        Waiting(bell, ends[0], 0.0).until(lambda: False, float("inf"))
    timer.join()


def test_what_is_ready_is_taken_from_a_peer_that_is_gone(bell: Bell, ends: Ends) -> None:
    ends[1].close()
    asked: list[int] = []

    def ready() -> bool:
        asked.append(1)
        return len(asked) > 2  # only when asked once more after its end was seen

    Waiting(bell, ends[0], 0.0).until(ready, time.monotonic() + 5)
    assert not ends[0].is_alive()


def test_a_wait_that_is_stopped(bell: Bell, ends: Ends) -> None:
    waiting = Waiting(bell, ends[0], 0.0)
    timer = later(waiting.stop)
    with pytest.raises(Stopped):
        waiting.until(lambda: False, time.monotonic() + 5)
    timer.join()


def test_work_in_the_background_is_asked_about_while_waiting(bell: Bell, ends: Ends) -> None:
    asked: list[int] = []

    def settling() -> bool:
        asked.append(1)
        return len(asked) < 5

    with pytest.raises(TimeoutError):
        Waiting(bell, ends[0], 0.0).until(lambda: False, time.monotonic() + 0.3, settling)
    assert 5 <= len(asked) <= 8, "asked on after it was done"


# Peers.


def test_the_end_of_a_process_is_noticed_though_its_socket_stays_open() -> None:
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    name = b"\0arcpp-test-" + os.urandom(8).hex().encode()
    listening.bind(name)
    listening.listen(1)
    child = os.fork()
    if child == 0:
        caller = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        caller.connect(name)
        socket.send_fds(there, [b"x"], [caller.fileno()])  # somebody else has it as well
        time.sleep(60)
        os._exit(0)
    connection, _ = listening.accept()
    _, (kept,), _, _ = socket.recv_fds(here, 1, 1)
    liveness = Liveness(connection)
    assert liveness.peer == child
    assert liveness.is_alive()
    os.kill(child, 9)
    os.waitpid(child, 0)
    assert not liveness.is_alive()
    liveness.close()
    liveness.close()
    for each in (here, there, listening):
        each.close()
    os.close(kept)


def test_an_invitation_is_carried_whole() -> None:
    meets = Meeting("a")
    carried = meets.invitation.to_bytes()
    assert Invitation.from_bytes(carried) == meets.invitation
    other = Meeting("a")
    assert other.invitation.name != meets.invitation.name
    assert other.invitation.secret != meets.invitation.secret
    assert meets.invitation.secret not in meets.invitation.name
    for each in (meets, other):
        each.close()
        with suppress(OSError):
            each.close()
