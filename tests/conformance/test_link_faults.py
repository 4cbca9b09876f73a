"""What goes wrong at the other end of a ring ends in the named fault, in time, and in nothing else.

Between two real processes, on virtual devices, which are late as real ones are.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from tests.support.link_kinds import NAME, NULL, PLAIN, SMALL, Kind
from tests.support.link_peers import Pair, Pairs

from arcpp.errors import LinkError, PeerLost
from arcpp.link import BoundarySpec, RingReceiver, RingSender, TensorSpec
from arcpp.link.frame import pack_header
from arcpp.testing import (
    Meddling,
    NullFault,
    Wrong,
    kit_for,
    meddle,
)

pytest.importorskip("torch")

SHAPE = (60, 1024)  # of float32: several chunks, in one slot
BIG = (700, 1024)  # several slots
RINGS = (PLAIN.with_options(geometry=SMALL), NULL.with_options(geometry=SMALL))
#: Roomy slots and an agreed boundary, so that a hop is one piece and shapes are known.
AGREED = NULL.with_options(boundary=BoundarySpec((TensorSpec("x", "float32", SHAPE),)))
SOON, PATIENCE = 0.4, 20.0


@pytest.fixture(scope="module", name="pairs")
def _pairs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pairs]:
    pairs = Pairs(tmp_path_factory.mktemp("pairs"))
    yield pairs
    pairs.end()


@pytest.fixture(params=RINGS, ids=str, name="pair")
def _pair(request: pytest.FixtureRequest, pairs: Pairs) -> Pair:
    return pairs.get(request.param)


def test_what_was_sent_before_the_sender_died_is_delivered(pair: Pair) -> None:
    for seed in range(3):
        pair.sender.run(send, pair.sender.device, seed, (20, 30))
    pair.sender.signal(signal.SIGKILL)
    for seed in range(3):
        pair.receiver.run(receive, pair.receiver.device, seed, (20, 30))
    fault = pair.receiver.run(fault_of_receiver, PATIENCE)
    assert fault == ("PeerLost", NAME, 3, pair.sender.pid)


def test_a_sender_killed_after_the_announcement(pair: Pair) -> None:
    """In the middle of a hop: announced, and some of its bytes there."""
    pair.receiver.start(fault_of_receiver, PATIENCE)
    pair.sender.start(send_half, True)
    assert pair.receiver.result() == ("PeerLost", NAME, 0, pair.sender.pid)
    pair.sender.signalled = True


def test_a_sender_killed_between_two_pieces_of_a_hop(pair: Pair) -> None:
    """The receiver takes nothing, so the sender is stuck with more pieces than there are slots."""
    pair.sender.start(send, pair.sender.device, 0, BIG)
    time.sleep(0.3)
    pair.sender.signal(signal.SIGKILL)
    fault = pair.receiver.run(fault_of_receiver, PATIENCE)
    assert fault == ("PeerLost", NAME, 0, pair.sender.pid)


def test_a_receiver_killed_in_the_middle_of_a_hop(pair: Pair) -> None:
    pair.sender.start(fault_of_sender, pair.sender.device, PATIENCE, BIG)
    time.sleep(0.3)
    pair.receiver.signal(signal.SIGKILL)
    assert pair.sender.result() == ("PeerLost", NAME, 0, pair.receiver.pid)


def test_a_sender_that_was_stopped_too_long_delivers_nothing_when_it_wakes(pair: Pair) -> None:
    pair.sender.start(send_for_ever, pair.sender.device)
    pair.receiver.run(keep_two, pair.receiver.device)
    pair.sender.signal(signal.SIGSTOP)
    delivered, fault = pair.receiver.run(receive_to_silence, pair.receiver.device)
    assert fault == ("DeadlineExceeded", NAME, delivered, pair.sender.pid)
    pair.sender.signal(signal.SIGCONT)
    assert pair.sender.result() == ("DeadlineExceeded", NAME)
    pair.receiver.run(check_kept, pair.receiver.device)


def test_a_receiver_that_was_stopped_too_long_delivers_whole_hops_only(pair: Pair) -> None:
    pair.receiver.signal(signal.SIGSTOP)
    kind, step = pair.sender.run(send_all_that_fits, pair.sender.device)
    assert kind == "DeadlineExceeded"
    pair.receiver.signal(signal.SIGCONT)
    assert pair.receiver.run(receive_until_fault, pair.receiver.device) == step


def test_a_forked_child_does_not_hide_the_death_of_its_parent(pair: Pair) -> None:
    child = pair.sender.run(fork_and_keep)
    try:
        pair.receiver.start(fault_of_receiver, PATIENCE)
        time.sleep(0.1)
        pair.sender.signal(signal.SIGKILL)
        assert pair.receiver.result() == ("PeerLost", NAME, 0, pair.sender.pid)
    finally:
        os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("meddling", Meddling, ids=lambda each: each.value)
def test_a_hop_that_is_announced_wrongly_is_corrupt(pairs: Pairs, meddling: Meddling) -> None:
    pair = pairs.get(AGREED)
    pair.sender.run(meddle, meddling, 2)
    pair.sender.start(send_some, pair.sender.device, 4)
    got, fault = pair.receiver.run(receive_some, pair.receiver.device, 4)
    late = meddling is Meddling.TWICE  # it is right the first time
    assert got == 2 + late
    assert fault == ("LinkCorrupt", NAME, 2 + late, pair.sender.pid)
    pair.sender.result()


def test_a_hop_whose_bytes_never_come(pair: Pair) -> None:
    pair.sender.run(send_half, False)
    fault = pair.receiver.run(fault_of_receiver, SOON)
    assert fault == ("DeadlineExceeded", NAME, 0, pair.sender.pid)


def with_fault(fault: NullFault) -> Kind:
    """The device of the end that ``fault`` is about has it."""
    return replace(NULL, data=fault)


@pytest.mark.parametrize("seed", range(6))
def test_a_copy_that_lies_in_either_direction_is_caught(pairs: Pairs, seed: int) -> None:
    fault = NullFault.by_seed(Wrong.CORRUPTS, seed, 4)
    pair = pairs.get(with_fault(fault))
    pair.sender.start(send_some, pair.sender.device, 4)
    got, found = pair.receiver.run(receive_some, pair.receiver.device, 4)
    assert (got, found) == (fault.hop, ("LinkCorrupt", NAME, fault.hop, pair.sender.pid))
    assert pair.receiver.run(verify_failures) == 1
    pair.sender.result()


@pytest.mark.parametrize("out", [True, False], ids=["out", "in"])
def test_a_copy_that_never_finishes(pairs: Pairs, out: bool) -> None:
    pair = pairs.get(with_fault(NullFault(Wrong.STALLS, 0, out)))
    pair.receiver.start(fault_of_receiver, SOON)
    fault = pair.sender.run(fault_of_sender, pair.sender.device, SOON, SHAPE, not out)
    if out:
        assert fault == ("DeadlineExceeded", NAME, 0, pair.receiver.pid)
    assert pair.receiver.result() == ("DeadlineExceeded", NAME, 0, pair.sender.pid)


@pytest.mark.parametrize("out", [True, False], ids=["out", "in"])
def test_a_device_that_is_lost_in_a_copy(pairs: Pairs, out: bool) -> None:
    pair = pairs.get(with_fault(NullFault(Wrong.VANISHES, 0, out)))
    pair.receiver.start(fault_of_receiver, SOON)
    fault = pair.sender.run(fault_of_sender, pair.sender.device, SOON, SHAPE, not out)
    found = pair.receiver.result()
    assert (fault if out else found)[:3] == ("LinkError", NAME, 0)


@pytest.mark.parametrize("out", [True, False], ids=["out", "in"])
def test_a_copy_that_is_late_is_right(pairs: Pairs, out: bool) -> None:
    pair = pairs.get(with_fault(NullFault(Wrong.LATE, 1, out, seconds=0.2)))
    pair.sender.start(send_some, pair.sender.device, 3)
    assert pair.receiver.run(receive_some, pair.receiver.device, 3) == (3, None)
    pair.sender.result()


def test_two_links_side_by_side_know_nothing_of_each_other(
    pairs: Pairs, tmp_path_factory: pytest.TempPathFactory
) -> None:
    others = Pairs(tmp_path_factory.mktemp("others"))
    try:
        one, other = pairs.get(NULL), others.get(NULL)
        for pair in (one, other):
            pair.sender.start(send_some, pair.sender.device, 20)
        for pair in (one, other):
            assert pair.receiver.run(receive_some, pair.receiver.device, 20) == (20, None)
            pair.sender.result()
        other.sender.signal(signal.SIGKILL)
        assert other.receiver.run(fault_of_receiver, PATIENCE)[0] == "PeerLost"
        one.sender.start(send, one.sender.device, 20, SHAPE)
        one.receiver.run(receive, one.receiver.device, 20, SHAPE)
        one.sender.result()
    finally:
        others.end()


# Below: what runs in the peers. A fault is told as (its name, link, step, peer).

Told = tuple[str, str, int | None, int | None]
_KEPT: list[dict[str, Any]] = []


def hop(device: str, seed: int, shape: tuple[int, ...] = SHAPE) -> dict[str, Any]:
    return {"x": kit_for(device).pattern("float32", shape, seed)}


def told(error: LinkError) -> Told:
    assert len(str(error).splitlines()) == 1
    assert str(error).startswith(f"{NAME}: ")
    return type(error).__name__, error.link, error.step, error.peer


def send(sender: RingSender, device: str, seed: int, shape: tuple[int, ...]) -> None:
    sender.send(hop(device, seed, shape), timeout=PATIENCE)


def receive(receiver: RingReceiver, device: str, seed: int, shape: tuple[int, ...]) -> None:
    kit = kit_for(device)
    got, sent = receiver.recv(timeout=PATIENCE), hop(device, seed, shape)
    assert kit.bits(got["x"]) == kit.bits(sent["x"])


def fault_of_receiver(receiver: RingReceiver, timeout: float) -> Told:
    started = time.monotonic()
    with pytest.raises(LinkError) as caught:
        receiver.recv(timeout=timeout)
    assert time.monotonic() - started < timeout + 2
    with pytest.raises(type(caught.value), match="not usable since hop"):
        receiver.recv(timeout=timeout)
    return told(caught.value)


def fault_of_sender(
    sender: RingSender, device: str, timeout: float, shape: tuple[int, ...], works: bool = False
) -> Told | None:
    """works: the fault is the other end's, and may or may not be noticed here."""
    started = time.monotonic()
    try:
        sender.send(hop(device, 0, shape), timeout=timeout)
    except LinkError as error:
        assert time.monotonic() - started < timeout + 2
        return told(error)
    assert works, "nothing went wrong"
    return None


def send_half(sender: RingSender, die: bool) -> None:
    memory = sender._memory
    layout = sender._staging.layout(hop(sender._staging.device, 0))
    length = min(layout.nbytes, memory.geometry.room)
    header = pack_header(0, 1, layout.described, (layout.nbytes, 0, length))
    memory.headers[0][: len(header)] = header
    memory.words[memory.filled[0]] = length // 2
    memory.publish(0, 0)
    sender._ring.data.ring()
    if die:
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGKILL)


def send_for_ever(sender: RingSender, device: str) -> tuple[str, str]:
    for seed in range(10**9):
        try:
            sender.send(hop(device, seed, (20, 30)), timeout=SOON)
        except LinkError as error:
            return told(error)[:2]
        time.sleep(0.005)
    raise AssertionError


def keep_two(receiver: RingReceiver, device: str) -> None:
    _KEPT[:] = [receiver.recv(timeout=PATIENCE) for _ in range(2)]


def receive_to_silence(receiver: RingReceiver, device: str) -> tuple[int, Told]:
    kit = kit_for(device)
    for seed in range(2, 10**9):
        try:
            got = receiver.recv(timeout=SOON)
        except LinkError as error:
            return seed, told(error)
        assert kit.bits(got["x"]) == kit.bits(hop(device, seed, (20, 30))["x"])
    raise AssertionError


def check_kept(receiver: RingReceiver, device: str) -> None:
    """What was handed out is what it was, whatever the other end did since."""
    kit = kit_for(device)
    for seed, got in enumerate(_KEPT):
        assert kit.bits(got["x"]) == kit.bits(hop(device, seed, (20, 30))["x"])
    _KEPT.clear()


def send_some(sender: RingSender, device: str, hops: int) -> None:
    """As far as the other end goes along."""
    try:
        for seed in range(hops):
            send(sender, device, seed, SHAPE)
    except PeerLost:
        pass


def receive_some(receiver: RingReceiver, device: str, hops: int) -> tuple[int, Told | None]:
    """How many hops arrived as sent, and the fault that ended it."""
    kit = kit_for(device)
    for seed in range(hops):
        try:
            got = receiver.recv(timeout=PATIENCE)
        except LinkError as error:
            receiver.close()
            return seed, told(error)
        assert kit.bits(got["x"]) == kit.bits(hop(device, seed)["x"]), f"hop {seed}"
    return hops, None


def verify_failures(receiver: RingReceiver) -> int:
    return receiver.counters.verify_failures


def send_all_that_fits(sender: RingSender, device: str) -> tuple[str, int]:
    for seed in range(100):
        try:
            sender.send(hop(device, seed, (20, 30)), timeout=SOON)
        except LinkError as error:
            sender.close()
            return type(error).__name__, seed
    raise AssertionError("the ring has no end")


def receive_until_fault(receiver: RingReceiver, device: str) -> int:
    """Hops that arrived as sent before the first fault, which comes at once."""
    kit = kit_for(device)
    for seed in range(100):
        try:
            got = receiver.recv(timeout=PATIENCE)
        except PeerLost:
            return seed
        assert kit.bits(got["x"]) == kit.bits(hop(device, seed, (20, 30))["x"])
    raise AssertionError("no fault")


def fork_and_keep(sender: RingSender) -> int:
    """A child with copies of all descriptors, that does nothing with them."""
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    return child
