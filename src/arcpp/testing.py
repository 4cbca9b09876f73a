"""Conformance of a link: every promise of ``arcpp.link.port`` as a case to run on your own ends.

A case has two halves, one for each end. Open a pair, run both halves at the same time, each
where its end lives (a process or a thread), and let an exception fail your test::

    @pytest.mark.parametrize("case", LINK_CASES, ids=str)
    def test_my_link(case):
        sender, receiver = open_my_link()
        run_in_threads(case, sender, receiver)

A pair serves one case: some of them end with a link that is unusable, as promised. What needs a
peer to be killed or stopped cannot be done from here; ``expect_*`` are the halves that watch,
and tests/conformance/test_link.py of the repository shows them at work. Tensors are torch's,
which is imported when a half runs.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from .errors import DeadlineExceeded, LinkError, PeerLost
from .link import LinkReceiver, LinkSender
from .link.frame import DTYPE_BYTES

__all__ = [
    "LINK_CASES",
    "LinkCase",
    "expect_deadline_when_nobody_receives",
    "expect_deadline_when_nobody_sends",
    "expect_loss_while_receiving",
    "expect_loss_while_sending",
    "run_in_threads",
]

#: Seconds for what must work. Nothing below waits this long unless the link is broken.
PATIENCE = 20.0
#: Hops of HOP_BYTES that no link may take while nobody receives: it would grow without bound.
TOO_MANY_HOPS, HOP_BYTES = 100, 1 << 20
#: Seconds by which an expired wait may come back late, on a machine busy with other things.
LATE = 5.0

_Hop = dict[str, Any]  # tensors by name


@dataclass(frozen=True)
class LinkCase:
    """One promise. Both halves take their end and the device to put tensors on ("cpu", "xpu:0")."""

    name: str
    send: Callable[[LinkSender, str], None]
    receive: Callable[[LinkReceiver, str], None]

    def __str__(self) -> str:
        return self.name


def run_in_threads(
    case: LinkCase, sender: LinkSender, receiver: LinkReceiver, device: str = "cpu"
) -> None:
    """Run both halves of ``case`` in this process, close both ends, raise what a half raised."""
    try:
        with ThreadPoolExecutor(2) as threads:
            halves = [
                threads.submit(case.receive, receiver, device),
                threads.submit(case.send, sender, device),
            ]
        for half in halves:
            half.result()
    finally:
        _close_twice(sender, device)
        _close_twice(receiver, device)


def expect_deadline_when_nobody_sends(receiver: LinkReceiver, timeout: float = 0.3) -> None:
    """A silent peer: DeadlineExceeded, not before the time given and not long after."""
    waited = _fault(DeadlineExceeded, receiver, lambda: receiver.recv(timeout=timeout), 1)
    _check(timeout <= waited < timeout + LATE, f"waited {waited:.4f} s of {timeout} s")


def expect_deadline_when_nobody_receives(sender: LinkSender, timeout: float = 0.3) -> None:
    """A full link: DeadlineExceeded after a bounded number of hops, its wait as above."""
    hop = {"x": _pattern("uint8", (HOP_BYTES,), 0, "cpu")}
    send = lambda: sender.send(hop, timeout=timeout)  # noqa: E731
    waited = _fault(DeadlineExceeded, sender, send, TOO_MANY_HOPS)
    _check(timeout <= waited < timeout + LATE, f"waited {waited:.4f} s of {timeout} s")


def expect_loss_while_receiving(receiver: LinkReceiver) -> None:
    """A peer that died or will die: PeerLost long before the timeout."""
    waited = _fault(PeerLost, receiver, lambda: receiver.recv(timeout=PATIENCE), 1)
    _check(waited < PATIENCE, "a dead peer was noticed at the deadline only")


def expect_loss_while_sending(sender: LinkSender) -> None:
    """The same for a sender, which may hand over hops for as long as there is room."""
    hop = {"x": _pattern("uint8", (HOP_BYTES,), 0, "cpu")}
    send = lambda: sender.send(hop, timeout=PATIENCE)  # noqa: E731
    waited = _fault(PeerLost, sender, send, TOO_MANY_HOPS)
    _check(waited < PATIENCE, "a dead peer was noticed at the deadline only")


def _torch() -> Any:
    import torch

    return torch


def _pattern(dtype: str, shape: tuple[int, ...], seed: int, device: str) -> Any:
    """Any bits at all (NaNs with payloads, infinities, both zeros), the same for one seed."""
    torch = _torch()
    generator = torch.Generator().manual_seed(seed)
    size = math.prod(shape) * DTYPE_BYTES[dtype]
    raw = torch.randint(0, 2 if dtype == "bool" else 256, (size,), generator=generator)
    typed = raw.to(torch.uint8).view(getattr(torch, dtype))
    return typed.reshape(shape).to(device)


def _bits(tensor: Any) -> bytes:
    torch = _torch()
    raw = tensor.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8)
    return bytes(raw.numpy().tobytes())


def _check(holds: bool, otherwise: str) -> None:
    """An assertion that python -O keeps."""
    if not holds:
        raise AssertionError(otherwise)


def _check_same(got: _Hop, sent: _Hop) -> None:
    _check(list(got) == list(sent), f"names {list(got)} arrived for {list(sent)}")
    for name, tensor in sent.items():
        arrived = got[name]
        for what in ("dtype", "shape", "device"):
            found, wanted = getattr(arrived, what), getattr(tensor, what)
            _check(found == wanted, f"{name!r}: {what} {found} arrived for {wanted}")
        _check(_bits(arrived) == _bits(tensor), f"{name!r}: other bits arrived")


def _fault(
    kind: type[LinkError], end: LinkSender | LinkReceiver, use: Callable[[], object], uses: int
) -> float:
    """One of ``uses`` raises ``kind``, and the next use some LinkError; seconds the first took."""
    for _ in range(uses):
        started = time.monotonic()
        try:
            use()
        except LinkError as error:
            waited = time.monotonic() - started
            _check(type(error) is kind, f"{kind.__name__} was due, not {error!r}")
            _check(error.link == end.name, f"the error names link {error.link!r}")
            _check(len(str(error).splitlines()) == 1, f"more than one line: {error}")
            break
    else:
        raise AssertionError(f"no {kind.__name__} in {uses} uses")
    try:
        use()
    except LinkError:
        return waited
    raise AssertionError(f"the link went on after {kind.__name__}")


def _dtypes(device: str) -> Iterator[_Hop]:
    yield {d: _pattern(d, (7, 33), seed, device) for seed, d in enumerate(DTYPE_BYTES)}


def _shapes(device: str) -> Iterator[_Hop]:
    shapes: tuple[tuple[int, ...], ...] = (
        *((), (0,), (1,), (3, 0, 5), (1, 2, 1, 2, 1, 2, 1, 2), (2_000_003,)),
    )
    for dtype in ("bfloat16", "bool", "int64"):
        yield {f"{shape}": _pattern(dtype, shape, len(shape), device) for shape in shapes}


def _layouts(device: str) -> Iterator[_Hop]:
    base = _pattern("float32", (12, 16), 1, device)
    yield {
        "transposed": base.t(),
        "strided": base[::3, 1::2],
        "offset": base[5:],
        "expanded": base[:, :1].expand(12, 9),
        "permuted": base.reshape(3, 4, 16).permute(2, 0, 1),
        "with gradient": base.clone().requires_grad_(),
    }


def _names(device: str) -> Iterator[_Hop]:
    names = ("z", "a", "hidden_states", "Schicht 3", "\N{GREEK SMALL LETTER ALPHA}" * 32, "x" * 64)
    yield {name: _pattern("int8", (3,), seed, device) for seed, name in enumerate(names)}
    yield {}
    yield {"after an empty hop": _pattern("int8", (3,), 0, device)}


def _many(device: str) -> Iterator[_Hop]:
    for hop in range(200):
        yield {"x": _pattern("int16", (hop * 37 % 101, 5), hop, device)}


_Hops = Callable[[str], Iterator[_Hop]]


def _crossing(name: str, hops: _Hops, *, pause: float = 0.0) -> LinkCase:
    """All hops arrive as sent; ``pause``: seconds the receiver lets pass before each."""

    def send(sender: LinkSender, device: str) -> None:
        for hop in hops(device):
            sender.send(hop, timeout=PATIENCE)

    def receive(receiver: LinkReceiver, device: str) -> None:
        for hop in hops(device):
            time.sleep(pause)
            _check_same(receiver.recv(timeout=PATIENCE), hop)

    return LinkCase(name, send, receive)


def _overwritten(device: str) -> Iterator[_Hop]:
    for seed in range(12):
        yield {"x": _pattern("int32", (64, 1024), seed, device)}


def _send_overwriting(sender: LinkSender, device: str) -> None:
    reused = _pattern("int32", (64, 1024), 0, device)
    for hop in _overwritten(device):
        reused.copy_(hop["x"])
        sender.send({"x": reused}, timeout=PATIENCE)
        reused.zero_()


def _receive_keeping(receiver: LinkReceiver, device: str) -> None:
    hops = list(_overwritten(device))
    kept = [receiver.recv(timeout=PATIENCE) for _ in hops]
    for got, hop in zip(kept, hops, strict=True):
        _check_same(got, hop)
        got["x"].zero_()


_CANNOT_CROSS: dict[str, Callable[[Any, Any], dict[Any, Any]]] = {
    "a complex tensor": lambda torch, good: {"x": good.to(torch.complex64)},
    "a sparse tensor": lambda _torch, good: {"x": good.to_sparse()},
    "a tensor without data": lambda _torch, good: {"x": good.to("meta")},
    "a list": lambda _torch, _good: {"x": [1, 2]},
    "None": lambda _torch, _good: {"x": None},
    "no name": lambda _torch, good: {"": good},
    "a number for a name": lambda _torch, good: {3: good},
    "a long name": lambda _torch, good: {"x" * 65: good},
    "nine dimensions": lambda _torch, good: {"x": good.reshape((2,) + (1,) * 8)},
    "65 tensors": lambda _torch, good: {f"{number}": good for number in range(65)},
}


def _refusing(what: str) -> LinkCase:
    def send(sender: LinkSender, device: str) -> None:
        hop = _CANNOT_CROSS[what](_torch(), _pattern("int8", (2,), 0, device))
        try:
            sender.send(hop, timeout=PATIENCE)
        except ValueError as error:
            _check(len(str(error).splitlines()) == 1, f"more than one line: {error}")
        else:
            raise AssertionError(f"{what} was sent")

    return LinkCase(f"{what} is refused", send, _nothing)


def _close_twice(end: LinkSender | LinkReceiver, device: str) -> None:  # noqa: ARG001 (a half)
    end.close()
    end.close()


def _nothing(end: LinkSender | LinkReceiver, device: str) -> None:
    """This end stays open and does nothing."""


LINK_CASES: tuple[LinkCase, ...] = (
    _crossing("every dtype arrives bit by bit", _dtypes),
    _crossing("every shape arrives", _shapes),
    _crossing("tensors that are not contiguous arrive", _layouts),
    _crossing("names arrive in order, empty hops too", _names),
    _crossing("many hops arrive in order", _many),
    _crossing("a slow receiver loses nothing", _overwritten, pause=0.02),
    LinkCase("tensors may be reused at once by both ends", _send_overwriting, _receive_keeping),
    *map(_refusing, _CANNOT_CROSS),
    LinkCase(
        "a silent sender is noticed at the deadline",
        _nothing,
        lambda receiver, _device: expect_deadline_when_nobody_sends(receiver),
    ),
    LinkCase(
        "a full link holds the sender back",
        lambda sender, _device: expect_deadline_when_nobody_receives(sender),
        _nothing,
    ),
    LinkCase("both ends close at any time and twice", _close_twice, _close_twice),
)
