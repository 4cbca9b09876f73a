"""Which request may be what kills its stage: the poison rule.

A request that was in the failing step at two faults, without a new token between them, is a
suspect. Suspects are tried by halves while everybody else waits: a group of which every request
made a token is cleared, a group that ends in another fault is halved again, and a request that
faults twice running alone is failed. A new token clears a request at any time.

Groups take turns (the halves of a group that faulted are tried after the groups that are
already waiting), so that between two faults of a poisonous request others show that the device
works. With one poisonous request among n, the number of faults is at most ceil(log2(n)) + 3;
every further one adds as many at most, every random fault one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

_ALONE = 2  # faults alone, running, after which a suspect is failed


class Suspects:
    """The rule's memory. One per engine; not for several threads at once.

    The caller keeps to ``allowed`` and tells of every new token (``progress``), every request
    that is over (``gone``) and every fault (``fault``). Without ``gone`` a trial would wait for
    a request that will never run again.
    """

    def __init__(self) -> None:
        #: Output tokens of each request at the last fault it was in, while it made no new one.
        self._marked: dict[str, int] = {}
        #: Suspects not yet tried, by groups, the next one first.
        self._waiting: deque[list[str]] = deque()
        #: The group that may run, and those of it that are not cleared yet.
        self._group: frozenset[str] = frozenset()
        self._untried: list[str] = []
        #: Faults alone, running.
        self._alone: dict[str, int] = {}

    def fault(self, in_flight: Mapping[str, int]) -> tuple[str, ...]:
        """A step failed that had exactly ``in_flight`` in it: output tokens by request id.

        An empty one (idle, or while stages were starting) changes nothing. Returns the requests
        to fail, at most one; they are forgotten as by ``gone``.
        """
        for request, tokens in in_flight.items():
            self.progress(request, tokens)
        again = [request for request in in_flight if request in self._marked]
        self._marked.update(in_flight)
        for request in again:
            self._untry(request)
        self._group -= set(again)  # what is left of the group is tried without them
        failed: tuple[str, ...] = ()
        if len(in_flight) == len(again) == 1:
            failed = self._faulted_alone(again[0])
        elif again:
            self._waiting.extend(_halves(again))
        self._next_group()
        return failed

    def progress(self, request_id: str, tokens: int) -> None:
        """``request_id`` has ``tokens`` output tokens now."""
        if request_id in self._marked and tokens > self._marked[request_id]:
            self._clear(request_id)
            self._next_group()

    def gone(self, request_id: str) -> None:
        """``request_id`` finished, was aborted or failed."""
        self._clear(request_id)
        self._group -= {request_id}
        self._next_group()

    def allowed(self) -> frozenset[str] | None:
        """The requests that may be scheduled now, or None: all of them."""
        return self._group if self._untried else None

    @property
    def trying(self) -> bool:
        """Whether a trial is going on."""
        return bool(self._untried)

    def _faulted_alone(self, request: str) -> tuple[str, ...]:
        self._alone[request] = self._alone.get(request, 0) + 1
        if self._alone[request] < _ALONE:
            self._waiting.append([request])
            return ()
        self.gone(request)
        return (request,)

    def _clear(self, request: str) -> None:
        self._marked.pop(request, None)
        self._alone.pop(request, None)
        self._untry(request)

    def _untry(self, request: str) -> None:
        """Take a request out of whatever group it is in."""
        for group in (self._untried, *self._waiting):
            if request in group:
                group.remove(request)

    def _next_group(self) -> None:
        while not self._untried and self._waiting:
            self._untried = self._waiting.popleft()
            self._group = frozenset(self._untried)
        if not self._untried:
            self._group = frozenset()


def _halves(requests: Sequence[str]) -> list[list[str]]:
    middle = (len(requests) + 1) // 2
    return [half for half in (list(requests[:middle]), list(requests[middle:])) if half]
