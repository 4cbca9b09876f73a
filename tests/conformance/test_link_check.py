"""What a link finds out about its copies before it is used, and what follows from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.link_kinds import P2P, open_over_group
from tests.support.link_peers import DEVICES, Pair, open_p2p, open_ring

from arcpp.errors import LinkCorrupt

torch = pytest.importorskip("torch")

FROM = 16 << 10  # bytes of a hop from which on the liar lies


def lying_ring(rank: int) -> Any:
    """A ring whose sending device changes a byte of every larger copy."""
    from arcpp.backends import ring_link

    if rank == 0:
        ring_link.staging_for = liar  # type: ignore[attr-defined]
    ring_link._has_copies = lambda end: True
    return open_ring(rank)


def liar(device: str) -> Any:
    from arcpp.backends.torch_staging import CpuStaging

    class Liar(CpuStaging):
        def copy_out(self, tensors: Mapping[str, Any], piece: Any) -> None:
            super().copy_out(tensors, piece)
            if piece.length >= FROM:
                self.memory[piece.at + piece.length // 2] ^= 1

    return Liar(torch.device(device))


def lying_cards(rank: int) -> Any:
    """Cards that read each other's memory; the sending one changes a byte of larger copies."""
    from arcpp.backends.peer_staging import PeerStaging

    if rank == 0:
        copy_out = PeerStaging.copy_out

        def lies(self: PeerStaging, tensors: Mapping[str, Any], piece: Any) -> Any:
            outgoing = copy_out(self, tensors, piece)  # whoever waits for it waits for this too
            if piece.length >= FROM:
                at = piece.at + piece.length // 2
                self.payload[at : at + 1].bitwise_xor_(1)
            return outgoing

        PeerStaging.copy_out = lies  # type: ignore[method-assign]
    return open_p2p(rank)


def lying_stand_in(rank: int) -> Any:
    """The same where no card is: what is asked for the cards' memory answers with the ring's."""
    from arcpp.backends import ring_link

    ring_link.peer_staging_for = lambda end, options: (  # type: ignore[attr-defined]
        liar(end.device) if end.sends else ring_link.staging_for("cpu")  # type: ignore[attr-defined]
    )
    return open_over_group(replace(P2P, devices=("cpu", "cpu")), rank).end


def checked_ring(rank: int) -> Any:
    from arcpp.backends import ring_link

    ring_link._has_copies = lambda end: True
    return open_ring(rank)


def test_a_device_that_lies_is_verified_from_then_on(tmp_path: Path) -> None:
    with Pair(tmp_path, lying_ring) as pair:
        for peer in (pair.sender, pair.receiver):
            assert peer.run(what_was_found) == (
                "device",
                (
                    f"stage0->stage1: a copy of {FROM} bytes arrived changed; from now on every "
                    "hop is verified on both devices, and a changed one ends in an error, not in "
                    "wrong text",
                ),
            )
        pair.receiver.start(receive, 2)
        pair.sender.run(send, 100)
        pair.sender.run(send, FROM)
        assert pair.receiver.result() == [100, "LinkCorrupt: x"]


def test_a_device_that_does_not_is_not(tmp_path: Path) -> None:
    with Pair(tmp_path, checked_ring) as pair:
        for peer in (pair.sender, pair.receiver):
            assert peer.run(what_was_found) == ("descriptor", ())


@pytest.mark.skipif(DEVICES[0].startswith("cuda"), reason="cards can copy from each other here")
def test_no_way_from_card_to_card_falls_back_with_a_line(tmp_path: Path) -> None:
    with Pair(tmp_path, open_p2p) as pair:
        for peer in (pair.sender, pair.receiver):
            _, (note,) = peer.run(what_was_found)
            assert note == (
                "stage0->stage1: not from card to card but through host memory: "
                f"torch shares no device memory between processes on {DEVICES[0]}"
            )


@pytest.mark.parametrize("cards", [False, True], ids=["stand-in for cards", "cards"])
def test_a_copy_from_card_to_card_that_lies_falls_back_with_a_line(
    cards: bool, tmp_path: Path
) -> None:
    """cards: the memory of LINK_TEST_DEVICE's, shared as the link shares it; else the ring's own
    memory in its place. Either way one byte of larger copies is changed on its way."""
    if cards and not DEVICES[0].startswith("cuda"):
        pytest.skip(f"{DEVICES[0]} shares no memory between processes: set LINK_TEST_DEVICE=cuda:0")
    with Pair(tmp_path, lying_cards if cards else lying_stand_in) as pair:
        for peer in (pair.sender, pair.receiver):
            verification, (note,) = peer.run(what_was_found)
            assert verification == "descriptor"
            assert note == (
                "stage0->stage1: not from card to card but through host memory: "
                f"a copy of {FROM} bytes arrived changed"
            )
            assert peer.run(pages) != "peer"
        pair.receiver.start(receive_pattern, [100, FROM, 5 << 20])
        for size in (100, FROM, 5 << 20):
            pair.sender.run(send_pattern, size, DEVICES[0] if cards else "cpu")
        assert pair.receiver.result() == [True, True, True]


@pytest.mark.skipif(
    not DEVICES[0].startswith("cuda"), reason="LINK_TEST_DEVICE names no cards that share memory"
)
def test_a_copy_from_card_to_card_that_does_not_is_used(tmp_path: Path) -> None:
    with Pair(tmp_path, open_p2p) as pair:
        for peer in (pair.sender, pair.receiver):
            assert peer.run(what_was_found) == ("descriptor", ())
            assert peer.run(pages) == "peer"


# Below: what runs in the peers.


def what_was_found(end: Any) -> tuple[str, tuple[str, ...]]:
    return end.verification.value, end.notes


def pages(end: Any) -> str:
    return end.pinning


def pattern(size: int) -> Any:
    return torch.arange(size, dtype=torch.int32).to(torch.uint8)


def send_pattern(sender: Any, size: int, device: str) -> None:
    sender.send({"x": pattern(size).to(device)}, timeout=10)


def receive_pattern(receiver: Any, sizes: list[int]) -> list[bool]:
    return [torch.equal(receiver.recv(timeout=10)["x"].cpu(), pattern(size)) for size in sizes]


def send(sender: Any, size: int) -> None:
    sender.send({"x": torch.zeros(size, dtype=torch.uint8)}, timeout=5)


def receive(receiver: Any, hops: int) -> list[object]:
    found: list[object] = []
    for _ in range(hops):
        try:
            found.append(receiver.recv(timeout=5)["x"].numel())
        except LinkCorrupt as error:
            assert receiver.counters.verify_failures == 1
            found.append(f"LinkCorrupt: {str(error).split()[3]}")
    return found
