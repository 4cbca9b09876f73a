"""What both ends of a ring share once they have met (`ring_open`): waits, faults, counting."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeVar

from arcpp.errors import DeadlineExceeded, LinkError, PeerLost

from .frame import BoundarySpec
from .meeting import Liveness
from .port import LinkCounters
from .ring import Bell, Gone, RingMemory, Stopped, Waiting
from .staging import Staging

_CLOSE_S = 1.0  # for another thread to come back from a hop while this end is closed
_Result = TypeVar("_Result")


class _Forks:
    """How often this process was forked off: cheaper to ask, several times a hop, than its id."""

    count = 0

    @classmethod
    def one_more(cls) -> None:
        cls.count += 1


os.register_at_fork(after_in_child=_Forks.one_more)


class Verification(Enum):
    """How much of a hop is checked beyond its header's own consistency and its step.

    OFF: nothing. DESCRIPTOR: names, dtypes and shapes against what was agreed on. DEVICE: also a
    checksum of each tensor, taken on the source device and again on the destination.
    """

    OFF = "off"
    DESCRIPTOR = "descriptor"
    DEVICE = "device"


@dataclass
class Ring:
    """What both ends hold once they have met.

    data: the bell the sender rings. room: the bell the receiver rings. spin: seconds to look for
    a change before blocking; 0 where both ends are threads of one process, which would only take
    the interpreter from each other.
    """

    name: str
    memory: RingMemory
    data: Bell
    room: Bell
    liveness: Liveness
    staging: Staging
    boundary: BoundarySpec | None
    verification: Verification
    spin: float
    counters: LinkCounters = field(default_factory=LinkCounters)


class RingEnd:
    """What both ends share: the ring, the count of hops, and the fault that ended the link."""

    kind = "ring"

    def __init__(self, ring: Ring, bell: Bell) -> None:
        self.name, self.counters = ring.name, ring.counters
        self.verification = ring.verification
        self._ring, self._memory, self._staging = ring, ring.memory, ring.staging
        self._waiting = Waiting(bell, ring.liveness, ring.spin)
        self._step = self._pieces = 0
        self._fault: tuple[type[LinkError], int] | None = None  # an error would hold its tensors
        self._process, self._forks = os.getpid(), _Forks.count
        self._using = threading.Lock()
        self._closed = self._let_gone = False
        self.notes: tuple[str, ...] = ()

    @property
    def pinning(self) -> str:
        """How the ring's pages are known to this end's device; see Staging."""
        return self._staging.pinning

    @property
    def _verifies(self) -> bool:
        return self.verification is Verification.DEVICE

    def _check_usable(self) -> None:
        """A broken link stays broken: what lies in its slots may be half a hop."""
        if self._is_forked:
            raise LinkError(
                f"{self.name}: was opened by process {self._process} and is not this one's, a "
                "fork of it", link=self.name, step=self._step, peer=self._ring.liveness.peer,
            )  # fmt: skip
        if self._fault is not None:
            kind, step = self._fault
            raise kind(
                f"{self.name}: not usable since hop {step} failed",
                link=self.name, step=step, peer=self._ring.liveness.peer,
            )  # fmt: skip
        if self._closed:
            raise self._failed(PeerLost, "is closed")

    @property
    def _is_forked(self) -> bool:
        """Whether this is a child's copy of an end, which shares the memory and owns nothing."""
        return _Forks.count != self._forks

    def _hop(self, move: Callable[[float], _Result], timeout: float) -> _Result:
        """What ``move`` returns when given the deadline; whatever else ends it ends the link."""
        deadline = time.monotonic() + timeout
        if not self._using.acquire(blocking=False):
            if self._closed:
                raise self._failed(PeerLost, "is closed")
            raise LinkError(
                f"{self.name}: another thread is using this end",
                link=self.name, step=self._step, peer=self._ring.liveness.peer,
            )  # fmt: skip
        try:
            self._check_usable()
            return move(deadline)
        except LinkError:
            raise
        except TimeoutError:
            raise self._stuck() from None
        except Exception as error:
            raise self._broke(error) from error
        except BaseException:
            self._failed(LinkError, f"hop {self._step} was interrupted")
            raise
        finally:
            self._using.release()
            if self._closed:
                self._let_go(0.0)

    def _until(
        self,
        ready: Callable[[], bool],
        deadline: float,
        what: str,
        settling: Callable[[], bool] | None = None,
    ) -> None:
        if ready():
            return
        began = time.monotonic()
        try:
            self._waiting.until(ready, deadline, settling)
        except TimeoutError:
            raise self._late(what) from None
        except Gone:
            peer = self._ring.liveness.peer
            raise self._failed(
                PeerLost, f"the peer (process {peer}) went away during hop {self._step}"
            ) from None
        except Stopped:
            raise self._failed(
                PeerLost, f"was closed while hop {self._step} was waited for"
            ) from None
        finally:
            self.counters.wait_seconds += time.monotonic() - began

    def _stuck(self) -> LinkError:
        return self._late(f"{self._staging.device} does not finish its copy")

    def _late(self, what: str) -> LinkError:
        return self._failed(
            DeadlineExceeded,
            f"hop {self._step} did not finish in time: {what} (process {self._ring.liveness.peer})",
        )

    def _failed(self, kind: type[LinkError], what: str) -> LinkError:
        self._fault = kind, self._step
        return kind(
            f"{self.name}: {what}", link=self.name, step=self._step, peer=self._ring.liveness.peer
        )

    def _broke(self, error: Exception) -> LinkError:
        """A copy that the device's runtime refused."""
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        return self._failed(
            LinkError, f"hop {self._step} could not be copied on {self._staging.device}: {reason}"
        )

    def close(self) -> None:
        """As in the port. A hop that another thread waits for ends at once, with PeerLost."""
        if self._closed:
            return
        self._closed = True
        if self._is_forked:
            self._using = threading.Lock()  # whoever held it is not in this process
        else:
            self._waiting.stop()
        self._let_go(_CLOSE_S)

    def _let_go(self, patience: float) -> None:
        """Give everything back once no thread uses it; else the thread that does will."""
        if not self._using.acquire(timeout=patience):
            return
        try:
            if self._let_gone:
                return
            self._let_gone = True
            self._ring.liveness.close()
            self._ring.data.close()
            self._ring.room.close()
            if not self._is_forked:  # the pages are pinned for the process that opened this end
                self._staging.detach()
            self._memory.forget()
        finally:
            self._using.release()
