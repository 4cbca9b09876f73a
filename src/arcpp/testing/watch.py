"""The halves of a case that watch: faults that must come, in time, and name what they are about."""

from __future__ import annotations

import time
from collections.abc import Callable

from arcpp.errors import DeadlineExceeded, LinkError, PeerLost
from arcpp.link import LinkReceiver, LinkSender

from .kit import Hop, Kit, kit_for

#: Seconds for what must work. Nothing waits this long unless the link is broken.
PATIENCE = 20.0
#: Hops of HOP_BYTES that no link may take while nobody receives: it would grow without bound.
TOO_MANY_HOPS, HOP_BYTES = 100, 1 << 20
#: Seconds by which an expired wait may come back late, on a machine busy with other things.
LATE = 5.0


def expect_deadline_when_nobody_sends(receiver: LinkReceiver, timeout: float = 0.3) -> None:
    """A silent peer: DeadlineExceeded, not before the time given and not long after."""
    waited = fault_of(DeadlineExceeded, receiver, lambda: receiver.recv(timeout=timeout), 1)
    check(timeout <= waited < timeout + LATE, f"waited {waited:.4f} s of {timeout} s")


def expect_deadline_when_nobody_receives(
    sender: LinkSender, timeout: float = 0.3, device: str = "cpu"
) -> None:
    """A full link: DeadlineExceeded after a bounded number of hops, its wait as above."""
    hop = {"x": kit_for(device).pattern("uint8", (HOP_BYTES,), 0)}
    send = lambda: sender.send(hop, timeout=timeout)  # noqa: E731
    waited = fault_of(DeadlineExceeded, sender, send, TOO_MANY_HOPS)
    check(timeout <= waited < timeout + LATE, f"waited {waited:.4f} s of {timeout} s")


def expect_loss_while_receiving(receiver: LinkReceiver) -> None:
    """A peer that died or will die: PeerLost long before the timeout."""
    waited = fault_of(PeerLost, receiver, lambda: receiver.recv(timeout=PATIENCE), 1)
    check(waited < PATIENCE, "a dead peer was noticed at the deadline only")


def expect_loss_while_sending(sender: LinkSender, device: str = "cpu") -> None:
    """The same for a sender, which may hand over hops for as long as there is room."""
    hop = {"x": kit_for(device).pattern("uint8", (HOP_BYTES,), 0)}
    send = lambda: sender.send(hop, timeout=PATIENCE)  # noqa: E731
    waited = fault_of(PeerLost, sender, send, TOO_MANY_HOPS)
    check(waited < PATIENCE, "a dead peer was noticed at the deadline only")


def fault_of(
    kind: type[LinkError], end: LinkSender | LinkReceiver, use: Callable[[], object], uses: int = 1
) -> float:
    """One of ``uses`` raises ``kind``, and the next use some LinkError; seconds the first took."""
    for _ in range(uses):
        started = time.monotonic()
        try:
            use()
        except LinkError as error:
            waited = time.monotonic() - started
            check(type(error) is kind, f"{kind.__name__} was due, not {error!r}")
            check(error.link == end.name, f"the error names link {error.link!r}")
            check(len(str(error).splitlines()) == 1, f"more than one line: {error}")
            break
    else:
        raise AssertionError(f"no {kind.__name__} in {uses} uses")
    try:
        use()
    except LinkError:
        return waited
    raise AssertionError(f"the link went on after {kind.__name__}")


def check(holds: bool, otherwise: str) -> None:
    """An assertion that python -O keeps."""
    if not holds:
        raise AssertionError(otherwise)


def check_same(kit: Kit, got: Hop, sent: Hop) -> None:
    """Names, dtypes, shapes, devices and bits of ``got`` are those of ``sent``."""
    check(list(got) == list(sent), f"names {list(got)} arrived for {list(sent)}")
    for name, tensor in sent.items():
        arrived = got[name]
        found, wanted = kit.describe(arrived), kit.describe(tensor)
        check(found == wanted, f"{name!r}: {found} arrived for {wanted}")
        check(kit.bits(arrived) == kit.bits(tensor), f"{name!r}: other bits arrived")
