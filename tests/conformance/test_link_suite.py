"""The suite itself: a correct link in one process passes it, every broken one is caught."""

from __future__ import annotations

import queue
import time
from collections.abc import Mapping
from typing import Any

import pytest

from arcpp import testing
from arcpp.errors import DeadlineExceeded, LinkError, PeerLost
from arcpp.link import Frame, LinkReceiver, LinkSender, TensorSpec, encode_frame
from arcpp.link.frame import DTYPE_BYTES
from arcpp.testing import LINK_CASES, LinkCase, run_in_threads, watch

torch = pytest.importorskip("torch")


class QueueSender(LinkSender):
    """The smallest correct link between two threads. Broken ones override a step of it."""

    capacity = 3

    def __init__(self) -> None:
        self.name, self.kind = "queue", "queue"
        self.hops: queue.Queue[dict[str, Any]] = queue.Queue(self.capacity)
        self.fault: LinkError | None = None

    def send(self, tensors: Mapping[str, Any], *, timeout: float) -> None:
        self.raise_again()
        self.check(tensors)
        hop = {name: self.copy(tensor.detach()) for name, tensor in tensors.items()}
        try:
            self.put(hop, timeout)
        except queue.Full:
            self.fault = DeadlineExceeded("no room", link=self.name)
            raise self.fault from None

    def raise_again(self) -> None:
        if self.fault is not None:
            raise self.fault

    def check(self, tensors: Mapping[str, Any]) -> None:
        specs = []
        for name, tensor in tensors.items():
            if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
                raise ValueError("not a named tensor")
            dtype = str(tensor.dtype).removeprefix("torch.")
            if dtype not in DTYPE_BYTES or tensor.layout is not torch.strided or tensor.is_meta:
                raise ValueError("cannot cross")
            specs.append(TensorSpec(name, dtype, tuple(tensor.shape)))
        encode_frame(Frame(0, tuple(specs)))

    def copy(self, tensor: Any) -> Any:
        return tensor.clone()

    def put(self, hop: dict[str, Any], timeout: float) -> None:
        self.hops.put(hop, timeout=timeout)

    def close(self) -> None:
        pass


class QueueReceiver(LinkReceiver):
    def __init__(self, sender: QueueSender) -> None:
        self.name, self.kind = "queue", "queue"
        self.hops = sender.hops

    def recv(self, *, timeout: float) -> dict[str, Any]:
        try:
            return self.hops.get(timeout=timeout)
        except queue.Empty:
            raise DeadlineExceeded("nothing came", link=self.name) from None

    def close(self) -> None:
        pass


class Aliasing(QueueSender):
    def copy(self, tensor: Any) -> Any:
        return tensor


class Rounding(QueueSender):
    def copy(self, tensor: Any) -> Any:
        return tensor.to(torch.float64).to(tensor.dtype)  # changes the bits of some NaNs and int64


class Flattening(QueueSender):
    def copy(self, tensor: Any) -> Any:
        return tensor.clone().reshape(max(tensor.numel(), 1) if tensor.dim() == 0 else tensor.shape)


class MemoryOrder(QueueSender):
    def copy(self, tensor: Any) -> Any:
        if tensor.is_contiguous():
            return tensor.clone()
        return torch.as_strided(tensor, (tensor.numel(),), (1,), 0).clone().reshape(tensor.shape)


class Growing(QueueSender):
    capacity = 0


class Hasty(QueueSender):
    def put(self, hop: dict[str, Any], timeout: float) -> None:
        self.hops.put(hop, timeout=timeout / 2)


class Endless(QueueSender):
    def put(self, hop: dict[str, Any], timeout: float) -> None:
        self.hops.put(hop, timeout=timeout + watch.LATE)


class Dropping(QueueSender):
    def put(self, hop: dict[str, Any], timeout: float) -> None:
        if self.hops.full():
            return
        super().put(hop, timeout)


class Swapping(QueueSender):
    held: dict[str, Any] | None = None

    def put(self, hop: dict[str, Any], timeout: float) -> None:
        if self.held is None:
            self.held = hop
            return
        super().put(hop, timeout)
        super().put(self.held, timeout)
        self.held = None


class SkippingEmpty(QueueSender):
    def put(self, hop: dict[str, Any], timeout: float) -> None:
        if hop:
            super().put(hop, timeout)


class Sorting(QueueSender):
    def put(self, hop: dict[str, Any], timeout: float) -> None:
        super().put(dict(sorted(hop.items())), timeout)


class Unchecking(QueueSender):
    def check(self, tensors: Mapping[str, Any]) -> None:
        pass

    def copy(self, tensor: Any) -> Any:
        return tensor


class Recovering(QueueSender):
    """Goes on after a fault, as if the hop it lost had not been one."""

    def raise_again(self) -> None:
        if self.fault is not None:
            self.hops.get()


class Blaming(QueueSender):
    def send(self, tensors: Mapping[str, Any], *, timeout: float) -> None:
        try:
            super().send(tensors, timeout=timeout)
        except DeadlineExceeded as error:
            raise PeerLost(str(error), link=self.name) from None


class ClosingOnce(QueueSender):
    closed = False

    def close(self) -> None:
        if self.closed:
            raise RuntimeError("closed already")
        self.closed = True


CAUGHT_BY = {
    Aliasing: "tensors may be reused at once by both ends",
    Rounding: "every dtype arrives bit by bit",
    Flattening: "every shape arrives",
    MemoryOrder: "tensors that are not contiguous arrive",
    Growing: "a full link holds the sender back",
    Hasty: "a full link holds the sender back",
    Endless: "a full link holds the sender back",
    Blaming: "a full link holds the sender back",
    Recovering: "a full link holds the sender back",
    Dropping: "a slow receiver loses nothing",
    Swapping: "many hops arrive in order",
    SkippingEmpty: "names arrive in order, empty hops too",
    Sorting: "names arrive in order, empty hops too",
    ClosingOnce: "both ends close at any time and twice",
}


def _pair(kind: type[QueueSender]) -> tuple[QueueSender, QueueReceiver]:
    sender = kind()
    return sender, QueueReceiver(sender)


def _case(name: str) -> LinkCase:
    return next(case for case in LINK_CASES if case.name == name)


@pytest.mark.parametrize("case", LINK_CASES, ids=str)
def test_a_correct_link_passes(case: LinkCase) -> None:
    run_in_threads(case, *_pair(QueueSender))


@pytest.mark.parametrize("kind", CAUGHT_BY, ids=lambda kind: kind.__name__)
def test_a_broken_link_is_caught(kind: type[QueueSender], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "PATIENCE", 1.0)
    monkeypatch.setattr(watch, "LATE", 0.5)
    with pytest.raises((AssertionError, LinkError, RuntimeError)):
        run_in_threads(_case(CAUGHT_BY[kind]), *_pair(kind))


@pytest.mark.parametrize(
    "case", [case for case in LINK_CASES if case.name.endswith("is refused")], ids=str
)
def test_a_link_that_checks_nothing_is_caught(case: LinkCase) -> None:
    with pytest.raises((AssertionError, AttributeError)):
        run_in_threads(case, *_pair(Unchecking))


class Lost(QueueReceiver):
    """Notices its dead peer, at the deadline only when ``late``."""

    def __init__(self, late: bool) -> None:
        super().__init__(QueueSender())
        self.late = late

    def recv(self, *, timeout: float) -> dict[str, Any]:
        time.sleep(timeout if self.late else 0)
        raise PeerLost("gone", link=self.name)


def test_a_loss_noticed_at_the_deadline_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "PATIENCE", 0.5)
    testing.expect_loss_while_receiving(Lost(late=False))
    with pytest.raises(AssertionError, match="at the deadline only"):
        testing.expect_loss_while_receiving(Lost(late=True))


def test_every_case_has_its_own_name() -> None:
    assert len({case.name for case in LINK_CASES}) == len(LINK_CASES)
