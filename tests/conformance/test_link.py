"""Every link keeps the promises of ``arcpp.link.port``, between two real processes.

A link is added to LINKS by its kind (tests.support.link_kinds); the promises are in
``arcpp.testing``. Tensors lie on LINK_TEST_DEVICE ("cuda:0"; "cuda:0,cuda:1" for sender and
receiver), by default on the CPU.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.link_kinds import (
    GLOO,
    NAME,
    NULL,
    P2P,
    PLAIN,
    RING,
    SMALL,
    STREAMS,
    VERIFIED_RING,
    Kind,
)
from tests.support.link_peers import Pair, Pairs

from arcpp import testing
from arcpp.errors import LinkCorrupt
from arcpp.link import Frame, LinkReceiver, LinkSender, TensorSpec, encode_frame
from arcpp.testing import LINK_CASES, LinkCase

pytest.importorskip("torch")

#: Links that a host can open; everything below holds for them.
LINKS = (GLOO, RING, VERIFIED_RING, P2P, NULL)
#: Other ways through the same code, for which only the promises are repeated.
WAYS = tuple(kind.with_options(geometry=SMALL) for kind in (PLAIN, NULL, *STREAMS))
CASES = {case.name: case for case in LINK_CASES}


@pytest.fixture(scope="module", name="pairs")
def _pairs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pairs]:
    pairs = Pairs(tmp_path_factory.mktemp("pairs"))
    yield pairs
    pairs.end()


@pytest.fixture(params=LINKS, ids=str, name="pair")
def _pair(request: pytest.FixtureRequest, pairs: Pairs) -> Pair:
    return pairs.get(request.param)


@pytest.mark.parametrize("kind", [*LINKS, *WAYS], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_promise(pairs: Pairs, kind: Kind, name: str) -> None:
    pair = pairs.get(kind)
    pair.receiver.start(_half, "receive", name, pair.receiver.device)
    pair.sender.run(_half, "send", name, pair.sender.device)
    pair.receiver.result()
    for peer in (pair.sender, pair.receiver):
        peer.run(_close_twice)


def test_both_ends_say_what_they_are(pair: Pair) -> None:
    name, kind = pair.sender.run(_what_it_is)
    assert (name, kind) == pair.receiver.run(_what_it_is)
    assert name == NAME
    assert kind


def test_the_receiver_notices_a_sender_killed_while_it_waits(pair: Pair) -> None:
    pair.receiver.start(testing.expect_loss_while_receiving)
    time.sleep(0.2)
    pair.sender.signal(signal.SIGKILL)
    pair.receiver.result()


def test_the_receiver_notices_a_sender_killed_before(pair: Pair) -> None:
    pair.sender.signal(signal.SIGKILL)
    pair.receiver.run(testing.expect_loss_while_receiving)


def test_the_sender_notices_a_receiver_killed_while_it_waits_for_room(pair: Pair) -> None:
    pair.sender.start(testing.expect_loss_while_sending, pair.sender.device)
    time.sleep(0.5)
    pair.receiver.signal(signal.SIGKILL)
    pair.sender.result()


def test_the_sender_notices_a_receiver_killed_before(pair: Pair) -> None:
    pair.receiver.signal(signal.SIGKILL)
    pair.sender.run(testing.expect_loss_while_sending, pair.sender.device)


def test_a_stopped_sender_is_silent(pair: Pair) -> None:
    pair.sender.signal(signal.SIGSTOP)
    pair.receiver.run(testing.expect_deadline_when_nobody_sends, 0.3)


def test_a_stopped_receiver_is_silent(pair: Pair) -> None:
    pair.receiver.signal(signal.SIGSTOP)
    pair.sender.run(testing.expect_deadline_when_nobody_receives, 0.3, pair.sender.device)


@pytest.mark.parametrize("timeout", [0.0, 0.0004, 0.0996, 0.2504])
def test_a_deadline_is_not_taken_for_a_loss_by_a_fraction_of_a_millisecond(
    pair: Pair, timeout: float
) -> None:
    pair.receiver.run(testing.expect_deadline_when_nobody_sends, timeout)


@pytest.mark.parametrize("due", [1, 2**40])
def test_a_hop_of_another_step_is_corrupt(pair: Pair, due: int) -> None:
    pair.receiver.run(_set_step, due)
    pair.sender.start(_send_one, pair.sender.device)
    pair.receiver.run(_expect_corrupt, f"hop 0 arrived where hop {due} was due")
    pair.sender.result()


@pytest.mark.parametrize("size", [2**62, 2**63])
def test_a_size_nobody_has_room_for_is_corrupt(pair: Pair, size: int) -> None:
    pair.sender.start(_announce, size)
    pair.receiver.run(_expect_corrupt, "bytes, shape|shape|a piece of|could not be copied")
    pair.sender.result()


def test_bytes_that_are_no_header_are_corrupt(pair: Pair) -> None:
    pair.sender.start(_send_noise)
    pair.receiver.run(_expect_corrupt, "unreadable frame header")
    pair.sender.result()


# Below: what runs in the peers.


def _half(end: Any, which: str, name: str, device: str) -> None:
    case: LinkCase = CASES[name]
    getattr(case, which)(end, device)


def _what_it_is(end: LinkSender | LinkReceiver) -> tuple[str, str]:
    return end.name, end.kind


def _close_twice(end: LinkSender | LinkReceiver) -> None:
    end.close()
    end.close()


def _set_step(end: Any, step: int) -> None:
    end._step = step


def _send_one(sender: LinkSender, device: str) -> None:
    sender.send({"x": testing.kit_for(device).pattern("int64", (3,), 0)}, timeout=5)


def _expect_corrupt(receiver: LinkReceiver, why: str) -> None:
    for message in (why, "not usable since hop"):
        with pytest.raises(LinkCorrupt, match=message) as caught:
            receiver.recv(timeout=5)
        assert caught.value.link == receiver.name
        assert len(str(caught.value).splitlines()) == 1


def _announce(sender: Any, size: int) -> None:
    """A true header for a tensor that is never sent."""

    _send_raw(sender, encode_frame(Frame(0, (TensorSpec("x", "uint8", (size,)),))))


def _send_noise(sender: Any) -> None:
    _send_raw(sender, b"\xa5" * 4096)


def _send_raw(sender: Any, header: bytes) -> None:
    import torch

    if sender.kind == "gloo":
        sender._isend(torch.frombuffer(bytearray(header), dtype=torch.uint8)).wait()
        return
    sender._memory.headers[0][:] = header
    sender._memory.publish(0, 0)
    sender._ring.data.ring()
