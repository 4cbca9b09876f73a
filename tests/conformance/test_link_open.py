"""Opening and closing a ring: who may come in, what is left behind, and what stays."""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.link_kinds import HOST, NAME, NULL, SMALL, Kind
from tests.support.link_threads import run_both

from arcpp.errors import DeadlineExceeded, LinkError, PeerLost
from arcpp.link import BoundarySpec, RingOptions, TensorSpec, meeting, open_ring_pair, segment
from arcpp.link.meeting import Invitation, Meeting
from arcpp.link.ring import Geometry
from arcpp.link.ring_open import open_ring_receiver, open_ring_sender
from arcpp.testing import NullStaging, kit_for

torch = pytest.importorskip("torch")

OPTIONS = RingOptions(geometry=SMALL)


def held() -> SimpleNamespace:
    """What this process holds that a ring might leave behind."""
    gc.collect()
    maps = Path("/proc/self/maps").read_text()
    return SimpleNamespace(
        descriptors=len(os.listdir("/proc/self/fd")),
        maps=maps.count("memfd:arcpp") + maps.count("/dev/shm/arcpp"),
        threads=threading.active_count(),
        shared=len([name for name in os.listdir("/dev/shm") if name.startswith("arcpp-")]),
    )


@pytest.mark.parametrize("kind", [HOST, NULL], ids=str)
def test_a_thousand_links_leave_nothing_behind(kind: Kind) -> None:
    kind = kind.with_options(geometry=SMALL)
    kit = kit_for(kind.devices[0])
    hop = {"x": kit.pattern("bfloat16", (3, 64), 0)}
    before = None
    for number in range(1000):
        sender, receiver = (opened.end for opened in kind.open_both())
        sender.send(hop, timeout=5)
        got = receiver.recv(timeout=5)
        if number % 2:
            sender.send(hop, timeout=5)  # on its way when both ends close
        for end in (sender, receiver)[:: 1 if number % 3 else -1]:
            end.close()
        assert kit.bits(got["x"]) == kit.bits(hop["x"])
        del sender, receiver, got
        if number == 10:
            before = held()
    assert held() == before


def test_links_that_fail_to_open_leave_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    before = held()
    for _ in range(20):
        with pytest.raises(LinkError):
            open_ring_pair(NAME, Refusing("null:0"), NullStaging(), OPTIONS)
        with pytest.raises(LinkError):
            open_ring_pair(NAME, NullStaging(), Refusing("null:0"), OPTIONS)
        with pytest.raises(PeerLost):
            open_ring_sender(NAME, Invitation(b"x" * 32, b"y" * 16), NullStaging(), OPTIONS)
        with pytest.raises(DeadlineExceeded):
            open_ring_receiver(Meeting(NAME), NAME, NullStaging(), OPTIONS, 0.001)
    assert held() == before


class Refusing(NullStaging):
    def attach(self, memory: Any) -> None:
        super().attach(memory)
        raise RuntimeError("no page\ncan be pinned")


def test_a_device_that_refuses_the_memory_is_named() -> None:
    with pytest.raises(LinkError, match=r"^\S+: null:3 cannot use .* no page can be pin"):
        open_ring_pair(NAME, NullStaging(), Refusing("null:3"), OPTIONS)


@pytest.mark.parametrize("first", ["sender", "receiver"])
def test_tensors_that_were_handed_out_stay_until_they_are_dropped(first: str) -> None:
    before = held()
    sender, receiver = open_pair()
    sender.send({"x": torch.arange(1000), "y": torch.ones(3)}, timeout=5)
    got = receiver.recv(timeout=5)
    part = got["x"][100:200].view(10, 10)
    for end in (sender, receiver) if first == "sender" else (receiver, sender):
        end.close()
    assert held().maps == before.maps + 1
    del sender, receiver
    assert (got["x"] == torch.arange(1000)).all()
    del got
    gc.collect()
    assert part.tolist() == torch.arange(100, 200).view(10, 10).tolist()
    part += 1  # its own to write
    del part
    assert held() == before


def test_a_closed_end_that_is_kept_holds_no_memory() -> None:
    before = held()
    sender, receiver = open_pair()
    with pytest.raises(DeadlineExceeded):
        receiver.recv(timeout=0.0)
    sender.close()
    receiver.close()
    assert held() == before


def test_a_fault_that_is_kept_holds_no_tensors() -> None:
    before = held()
    sender, receiver = open_pair()
    sender.send({"x": torch.arange(1000)}, timeout=5)
    sender._step = 5
    sender.send({"x": torch.arange(1000)}, timeout=5)
    receiver.recv(timeout=5)
    with contextlib.suppress(LinkError):
        receiver.recv(timeout=5)
    sender.close()
    receiver.close()
    assert held() == before


def open_pair(geometry: Geometry = SMALL) -> Any:
    return (opened.end for opened in HOST.with_options(geometry=geometry).open_both())


# Who may come in.


@contextlib.contextmanager
def strangers(invitation: Invitation, shown: bytes | None, count: int) -> Iterator[None]:
    """Processes of this user that connect and show something, or nothing, and stay."""
    script = (
        "import socket, sys, time\n"
        "for _ in range(int(sys.argv[3])):\n"
        "    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
        "    globals().setdefault('kept', []).append(s)\n"
        "    s.connect(b'\\0' + bytes.fromhex(sys.argv[1]))\n"
        "    if sys.argv[2] != '-': s.send(bytes.fromhex(sys.argv[2]))\n"
        "    print('in', flush=True)\n"
        "time.sleep(60)\n"
    )
    said = "-" if shown is None else shown.hex()
    stranger = subprocess.Popen(
        [sys.executable, "-c", script, invitation.name.hex(), said, str(count)],
        stdout=subprocess.PIPE,
    )
    try:
        assert stranger.stdout is not None
        stranger.stdout.readline()
        yield
    finally:
        stranger.kill()
        stranger.communicate()


@pytest.mark.parametrize(
    ("shown", "count"), [(None, 1), (None, 40), (b"x" * 16, 1), (b"", 3), (b"x" * 40, 40)]
)
def test_strangers_are_turned_away_and_the_peer_gets_in(shown: bytes | None, count: int) -> None:
    meets = Meeting(NAME)
    opened: list[Any] = []
    receiving = threading.Thread(
        target=lambda: opened.append(
            open_ring_receiver(meets, NAME, NullStaging("null:1"), OPTIONS, 20)
        )
    )
    with strangers(meets.invitation, shown, count):
        receiving.start()
        time.sleep(0.1)
        started = time.monotonic()
        sender = open_ring_sender(NAME, meets.invitation, NullStaging("null:0"), OPTIONS, 20)
        receiving.join(20)
        assert time.monotonic() - started < 3, "a stranger kept the peer waiting"
    (receiver,) = opened
    hop = {"x": kit_for("null:0").pattern("uint8", (100,), 0)}
    sender.send(hop, timeout=5)
    assert receiver.recv(timeout=5)["x"].data == hop["x"].data
    sender.close()
    receiver.close()


def test_another_user_is_turned_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "credentials", lambda connection: (1, os.getuid() + 1))
    meets = Meeting(NAME)
    connection = meeting.connect(meets.invitation, NAME, 1.0)
    with pytest.raises(DeadlineExceeded, match="did not come in time"):
        meets.accept(0.2)
    connection.close()


def test_a_peer_that_never_comes() -> None:
    started = time.monotonic()
    with pytest.raises(DeadlineExceeded, match=f"{NAME}: the sending end did not come in time"):
        open_ring_receiver(Meeting(NAME), NAME, NullStaging(), OPTIONS, 0.3)
    assert 0.3 <= time.monotonic() - started < 3


@pytest.mark.parametrize("says", [None, b"?" * 24, b"?"], ids=["dies", "noise", "too little"])
def test_a_peer_that_comes_and_does_not_open(says: bytes | None) -> None:
    meets = Meeting(NAME)
    connection = meeting.connect(meets.invitation, NAME, 1.0)
    if says is None:
        connection.close()
    else:
        meeting.send_descriptors(connection, says, [0, 1, 2], NAME)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(LinkError, match=f"^{NAME}: the other end"):
        open_ring_receiver(meets, NAME, NullStaging(), OPTIONS, 2.0)
    assert len(os.listdir("/proc/self/fd")) < before, "the listening socket is closed at least"
    connection.close()


def test_a_peer_that_comes_and_stays_silent() -> None:
    meets = Meeting(NAME)
    connection = meeting.connect(meets.invitation, NAME, 1.0)
    with pytest.raises(DeadlineExceeded, match="the other end is silent"):
        open_ring_receiver(meets, NAME, NullStaging(), OPTIONS, 0.3)
    connection.close()


def test_descriptors_that_arrive_are_not_inherited() -> None:
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    meeting.send_descriptors(here, b"x", [0], NAME)
    _, (descriptor,) = meeting.receive_descriptors(there, 1, 1, NAME, 1.0)
    assert not os.get_inheritable(descriptor)
    for each in (here, there):
        each.close()
    os.close(descriptor)


# Memory.


@pytest.fixture(name="little")
def _little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file system in memory of 1 MiB in the place of /dev/shm, or what one would say."""
    folder = tmp_path / "shm"
    folder.mkdir()
    mounted = (
        os.getuid() == 0
        and shutil.which("mount") is not None
        and not subprocess.call(
            ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)],
            stderr=subprocess.DEVNULL,
        )
    )
    if not mounted:

        def full(descriptor: int, offset: int, size: int) -> None:
            raise OSError(28, os.strerror(28))

        monkeypatch.setattr(os, "posix_fallocate", full)
    monkeypatch.setattr(segment, "_FOLDER", str(folder))
    yield folder
    if mounted:
        subprocess.call(["umount", str(folder)])


def test_too_little_shared_memory_is_said_with_the_size_needed(little: Path) -> None:
    boundary = BoundarySpec((TensorSpec("x", "bfloat16", (1024, 1024)),))
    options = RingOptions(boundary, memory_kinds=("shm",))
    before = held()
    with pytest.raises(LinkError) as caught:
        open_ring_pair(NAME, NullStaging(), NullStaging(), options)
    needed = options.shape.nbytes
    text = str(caught.value)
    assert text.startswith(f"{NAME}: needs ")
    assert f"({needed} bytes) of shared memory" in text
    assert "No space left on device" in text
    assert text.endswith("give the container more with --shm-size")
    assert len(text.splitlines()) == 1
    assert list(little.iterdir()) == []
    del caught
    assert held() == before


def test_the_other_end_hears_that_there_was_no_memory(little: Path) -> None:
    meets = Meeting(NAME)
    options = RingOptions(geometry=Geometry(4, 1 << 20), memory_kinds=("shm",))
    faults: list[LinkError] = []

    def receive() -> None:
        with pytest.raises(LinkError) as caught:
            open_ring_receiver(meets, NAME, NullStaging(), options, 20.0)
        faults.append(caught.value)

    receiving = threading.Thread(target=receive)
    receiving.start()
    with pytest.raises(LinkError, match=r"needs 0\.00 GiB"):
        open_ring_sender(NAME, meets.invitation, NullStaging(), options, 20.0)
    receiving.join(5)
    (fault,) = faults
    assert type(fault) is PeerLost
    assert "could not open; its own error says why" in str(fault)


@pytest.mark.parametrize("kinds", [("memfd",), ("shm",), ("shm", "memfd")])
def test_either_kind_of_memory_carries_hops(kinds: tuple[str, ...]) -> None:
    kind = HOST.with_options(memory_kinds=kinds, geometry=SMALL)
    kit = kit_for(kind.devices[0])
    hop = {"x": kit.pattern("int16", (1000, 50), 7)}
    got = run_both(
        kind,
        lambda sender, _device: sender.send(hop, timeout=5),
        lambda receiver, _device: receiver.recv(timeout=5),
    )
    assert kit.bits(got["x"]) == kit.bits(hop["x"])


def test_memory_is_there_in_full_private_and_without_a_name() -> None:
    for kind in ("memfd", "shm"):
        descriptor = segment.create_segment(1 << 20, link=NAME, kinds=(kind,))
        found = os.fstat(descriptor)
        assert (found.st_size, found.st_blocks * 512) == (1 << 20, 1 << 20)
        assert found.st_mode & 0o077 == 0 or kind == "memfd"
        assert found.st_nlink == 0
        with pytest.raises(LinkError, match="shared memory of 1048576 bytes, not 4096"):
            segment.map_segment(descriptor, 4096, link=NAME)
        os.close(descriptor)
