"""What nobody should do with a ring, and what must not follow from it: wrong tensors, or a hang."""

from __future__ import annotations

import gc
import os
import queue
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.link_kinds import HOST, NAME, NULL, SMALL, Kind

from arcpp.errors import LinkError, PeerLost
from arcpp.link import RingReceiver, RingSender
from arcpp.link.ring import Bell
from arcpp.testing import kit_for

torch = pytest.importorskip("torch")

RING = HOST.with_options(geometry=SMALL)
KINDS = [RING, NULL.with_options(geometry=SMALL)]


def hop(kind: Kind, seed: int, size: int = 4000) -> dict[str, Any]:
    return {"x": kit_for(kind.devices[0]).pattern("int32", (size,), seed)}


@pytest.fixture(name="ring")
def _ring() -> Any:
    sender, receiver = (opened.end for opened in RING.open_both())
    yield SimpleNamespace(sender=sender, receiver=receiver)
    sender.close()
    receiver.close()


# Threads.


@pytest.mark.parametrize("which", ["sender", "receiver"])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_closing_ends_a_wait_in_another_thread(kind: Kind, which: str) -> None:
    sender, receiver = (opened.end for opened in kind.open_both())
    end = receiver if which == "receiver" else sender
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(_use_up, end, kind)
        time.sleep(0.2)
        started = time.monotonic()
        end.close()
        assert time.monotonic() - started < 0.9
        with pytest.raises(PeerLost, match=f"{NAME}: was closed while hop") as caught:
            waiting.result(5)
    assert caught.value.peer == os.getpid()
    other = sender if which == "receiver" else receiver
    with pytest.raises(PeerLost):
        _use_up(other, kind)
    other.close()


def _use_up(end: RingSender | RingReceiver, kind: Kind) -> None:
    while True:
        if isinstance(end, RingSender):
            end.send(hop(kind, 0), timeout=10)
        else:
            end.recv(timeout=10)


@pytest.mark.parametrize("which", ["sender", "receiver"])
def test_a_second_thread_in_an_end_is_told_so_and_harms_nobody(ring: Any, which: str) -> None:
    end = ring.receiver if which == "receiver" else ring.sender
    hops = 12
    with ThreadPoolExecutor(1) as threads:
        if which == "receiver":
            busy = threads.submit(lambda: [end.recv(timeout=10) for _ in range(hops)])
        else:
            busy = threads.submit(lambda: [end.send(hop(RING, n), timeout=10) for n in range(hops)])
        time.sleep(0.2)
        for _ in range(3):
            with pytest.raises(LinkError, match="another thread is using this end") as caught:
                _use_up(end, RING)
            assert type(caught.value) is LinkError
        for number in range(hops):
            if which == "receiver":
                ring.sender.send(hop(RING, number), timeout=10)
            else:
                got = ring.receiver.recv(timeout=10)
                assert torch.equal(got["x"], hop(RING, number)["x"])
        if which == "receiver":
            for number, got in enumerate(busy.result(10)):
                assert torch.equal(got["x"], hop(RING, number)["x"])
        busy.result(10)


def test_tensors_may_be_dropped_by_any_thread_at_any_time() -> None:
    """Slots are given back by another thread while hops go on, and while the end is closed."""
    dropped: queue.Queue[Any] = queue.Queue()
    dropping = threading.Thread(target=lambda: [None for _ in iter(dropped.get, None)])
    dropping.start()
    chosen = random.Random(0)
    for _ in range(40):
        sender, receiver = (opened.end for opened in RING.open_both())
        for number in range(chosen.randrange(3, 40)):
            sender.send(hop(RING, number), timeout=5)
            got = receiver.recv(timeout=5)
            assert torch.equal(got["x"], hop(RING, number)["x"])
            dropped.put(got)
            del got
        for end in chosen.sample([sender, receiver], 2):
            end.close()
    dropped.put(None)
    dropping.join(10)
    assert not dropping.is_alive()


def test_a_bell_may_be_rung_by_what_ringing_it_sets_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """The garbage collector may free tensors, and so give a slot back, in the middle of ring()."""
    bell, real, rung = Bell(), os.eventfd_write, []

    def write(descriptor: int, count: int) -> None:
        rung.append(count)
        if len(rung) == 1:
            bell.ring()
        real(descriptor, count)

    monkeypatch.setattr(os, "eventfd_write", write)
    ringing = threading.Thread(target=bell.ring, daemon=True)
    ringing.start()
    ringing.join(5)
    assert not ringing.is_alive(), "deadlock"
    assert len(rung) == 2
    bell.close()


def test_a_cycle_gives_its_slot_back(ring: Any) -> None:
    for number in range(50):
        ring.sender.send(hop(RING, number), timeout=5)
        cycle = SimpleNamespace(got=ring.receiver.recv(timeout=5))
        cycle.itself = cycle
        del cycle
        if number % 10 == 9:
            gc.collect()
            assert ring.receiver._held == set()


# Signals and exceptions.


class Interrupted(BaseException):
    """What a signal's handler raises."""


def _interrupt(number: int, frame: object) -> None:
    raise Interrupted


@pytest.mark.parametrize("which", ["sender", "receiver"])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_hop_that_is_interrupted_ends_the_link(kind: Kind, which: str) -> None:
    sender, receiver = (opened.end for opened in kind.open_both())
    end = receiver if which == "receiver" else sender
    before = signal.signal(signal.SIGALRM, _interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(Interrupted):
            _use_up(end, kind)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    with pytest.raises(LinkError, match="not usable since hop"):
        _use_up(end, kind)
    sender.close()
    receiver.close()


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_signals_that_are_handled_change_nothing(kind: Kind) -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, frame: seen.append(number))
    sender, receiver = (opened.end for opened in kind.open_both())
    kit = kit_for(kind.devices[0])
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        with ThreadPoolExecutor(1) as threads:
            sent = threads.submit(
                lambda: [sender.send(hop(kind, n, 30_000), timeout=10) for n in range(60)]
            )
            for number in range(60):
                got = receiver.recv(timeout=10)
                assert kit.bits(got["x"]) == kit.bits(hop(kind, number, 30_000)["x"])
            sent.result()
        started = time.monotonic()
        with pytest.raises(LinkError, match="did not finish in time"):
            receiver.recv(timeout=0.2)
        assert 0.2 <= time.monotonic() - started < 2
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert seen
    sender.close()
    receiver.close()


@pytest.mark.parametrize("error", [ZeroDivisionError, OverflowError, KeyError, TypeError("a\nb")])
def test_whatever_a_device_raises_ends_the_link_in_one_line(error: Any) -> None:
    sender, receiver = (opened.end for opened in NULL.open_both())

    def broken(*_arguments: object) -> Any:
        raise error

    sender._staging.copy_out = broken
    with pytest.raises(LinkError, match="hop 0 could not be copied on null:0") as caught:
        sender.send(hop(NULL, 0), timeout=5)
    assert len(str(caught.value).splitlines()) == 1
    assert (caught.value.link, caught.value.step) == (NAME, 0)
    with pytest.raises(LinkError, match="not usable"):
        sender.send(hop(NULL, 0), timeout=5)
    sender.close()
    receiver.close()


# Forks and the interpreter's end.


def _in_child(work: Callable[[], None]) -> None:
    """``work`` in a fork of this process; AssertionError if it raised."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def test_a_forked_child_gives_no_slot_of_its_parent_back(ring: Any) -> None:
    kept = []
    for number in range(2):
        ring.sender.send(hop(RING, number), timeout=5)
        kept.append(ring.receiver.recv(timeout=5))

    def work() -> None:
        kept.clear()
        gc.collect()

    _in_child(work)
    for number in range(2, 20):
        ring.sender.send(hop(RING, number), timeout=5)
        ring.receiver.recv(timeout=5)
    for number, got in enumerate(kept):
        assert torch.equal(got["x"], hop(RING, number)["x"]), "another hop lies in its slot"


def test_a_forked_child_cannot_use_an_end_and_may_close_it(ring: Any) -> None:
    detached: list[int] = []
    ring.sender._staging.detach = lambda: detached.append(os.getpid())

    def work() -> None:
        for end in (ring.sender, ring.receiver):
            with pytest.raises(LinkError, match="a fork of it"):
                _use_up(end, RING)
            end.close()
            end.close()
        assert detached == [], "the pages are pinned for the parent"

    _in_child(work)
    ring.sender.send(hop(RING, 0), timeout=5)
    assert torch.equal(ring.receiver.recv(timeout=5)["x"], hop(RING, 0)["x"])


@pytest.mark.parametrize(
    "last",
    ["pass", "sender.close(); receiver.close()", "del sender, receiver", "raise SystemExit(0)"],
)
def test_the_interpreter_ends_quietly_with_tensors_alive(last: str) -> None:
    script = (
        "import torch\n"
        "from arcpp.backends.torch_staging import staging_for\n"
        "from arcpp.link import open_ring_pair\n"
        "sender, receiver = open_ring_pair('a', staging_for('cpu'), staging_for('cpu'))\n"
        "sender.send({'x': torch.arange(1000)}, timeout=5)\n"
        "kept = receiver.recv(timeout=5)\n"
        "part = kept['x'][5:]\n"
        "torch.kept = kept['x'][7:]\n"
        f"{last}\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


# A peer that writes what it should not.


@pytest.mark.parametrize("seed", range(150))
def test_garbage_in_shared_memory_is_a_fault_or_nothing(seed: int) -> None:
    kind = KINDS[seed % 2]
    kit, chosen = kit_for(kind.devices[0]), random.Random(seed)
    sender, receiver = (opened.end for opened in kind.open_both())
    fault = None
    for number in range(6):
        try:
            sender.send(hop(kind, number, 40), timeout=0.05)
            if number >= 2:
                _garble(sender, chosen)
            got = receiver.recv(timeout=0.05)
        except LinkError as error:
            fault = error
            break
        assert kit.bits(got["x"]) == kit.bits(hop(kind, number, 40)["x"])
    sender.close()
    receiver.close()
    if fault is not None:
        assert number >= 2
        assert (fault.link, fault.peer) == (NAME, os.getpid())
        assert len(str(fault).splitlines()) == 1


def _garble(sender: RingSender, chosen: random.Random) -> None:
    """One control word, or some bytes of one slot's header; never a payload."""
    memory = sender._memory
    wrong = chosen.choice((0, 1, 2, 3, 2**32, 2**63, 2**64 - 1, chosen.getrandbits(64)))
    if chosen.random() < 0.6:
        word = chosen.choice((0, *range(16, 24), *memory.filled, *memory.busy))
        memory.words[word] = wrong
        return
    header = memory.headers[chosen.randrange(len(memory.headers))]
    for _ in range(chosen.randrange(1, 4)):
        header[chosen.randrange(70)] = chosen.randrange(256)
