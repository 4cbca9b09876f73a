"""How the two ends of a ring find each other and share descriptors.

The receiving end listens on an abstract Unix socket (no file, loopback of this machine only)
under a random name; whoever connects must be of the same user and show a secret, both of which
travel beforehand over what the ends already share (`Invitation`). The connection stays open: it
breaks the moment either process is gone, which is how an end learns of it.
"""

from __future__ import annotations

import array
import contextlib
import math
import os
import secrets
import select
import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass

from arcpp.errors import DeadlineExceeded, LinkError, PeerLost

_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid
_SECRET_BYTES = 16
_MOST_DESCRIPTORS = 8
_MOST_CALLERS = 16


@dataclass(frozen=True)
class Invitation:
    """Where a receiving end waits: the socket's name and the secret to show, as bytes."""

    name: bytes
    secret: bytes

    def to_bytes(self) -> bytes:
        """48 bytes, to be carried to the sending end."""
        return self.name + self.secret

    @staticmethod
    def from_bytes(carried: bytes) -> Invitation:
        """What to_bytes() gave."""
        return Invitation(carried[:-_SECRET_BYTES], carried[-_SECRET_BYTES:])


INVITATION_BYTES = 32 + _SECRET_BYTES


class Meeting:
    """The receiving end's side: listens from when it is made until accept() or close()."""

    def __init__(self, link: str) -> None:
        self._link = link
        name = b"arcpp-" + secrets.token_hex(13).encode()
        self.invitation = Invitation(name, secrets.token_bytes(_SECRET_BYTES))
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listening.bind(b"\0" + name)
        self._listening.listen(_MOST_CALLERS)

    def accept(self, timeout: float) -> socket.socket:
        """The other end. Strangers are turned away. Raises DeadlineExceeded."""
        deadline = time.monotonic() + timeout
        callers: dict[int, socket.socket] = {}  # who connected and has not shown anything yet
        poll = select.poll()
        poll.register(self._listening, select.POLLIN)
        self._listening.setblocking(False)
        try:
            while True:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise DeadlineExceeded(
                        f"{self._link}: the sending end did not come in time", link=self._link
                    )
                for descriptor, _ in poll.poll(math.ceil(left * 1000)):
                    if descriptor == self._listening.fileno():
                        self._greet(callers, poll)
                        continue
                    caller = callers.pop(descriptor, None)
                    if caller is None:
                        continue
                    poll.unregister(descriptor)
                    if self._shows_secret(caller):
                        return caller
                    caller.close()
        finally:
            for caller in callers.values():
                caller.close()
            self.close()

    def _greet(self, callers: dict[int, socket.socket], poll: select.poll) -> None:
        """Let the next caller in. One that says nothing keeps nobody out: the oldest has to go."""
        try:
            caller, _ = self._listening.accept()
        except OSError:  # it went away again
            return
        if credentials(caller)[1] != os.getuid():
            caller.close()
            return
        caller.setblocking(False)
        callers[caller.fileno()] = caller
        poll.register(caller, select.POLLIN)
        if len(callers) > _MOST_CALLERS:
            oldest = callers.pop(next(iter(callers)))
            poll.unregister(oldest)
            oldest.close()

    def _shows_secret(self, caller: socket.socket) -> bool:
        try:
            shown = caller.recv(_SECRET_BYTES)
        except OSError:
            return False
        return secrets.compare_digest(shown, self.invitation.secret)

    def close(self) -> None:
        """Stop listening."""
        self._listening.close()


def connect(invitation: Invitation, link: str, timeout: float) -> socket.socket:
    """The sending end's side. Raises PeerLost when nobody waits there."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(timeout)
    try:
        connection.connect(b"\0" + invitation.name)
        connection.send(invitation.secret)
    except OSError as error:
        connection.close()
        raise PeerLost(
            f"{link}: the receiving end does not wait for it: {error.strerror or error}", link=link
        ) from error
    return connection


def send_descriptors(
    connection: socket.socket, message: bytes, descriptors: Sequence[int], link: str
) -> None:
    """Hand ``descriptors`` to the other end with a short message. Raises PeerLost."""
    try:
        socket.send_fds(connection, [message], list(descriptors))
    except OSError as error:
        why = error.strerror or error
        raise PeerLost(f"{link}: the other end went away: {why}", link=link) from error


def receive_descriptors(
    connection: socket.socket, size: int, count: int, link: str, timeout: float
) -> tuple[bytes, list[int]]:
    """A message of ``size`` bytes and ``count`` descriptors. Raises LinkError and its kinds."""
    connection.settimeout(max(timeout, 0.001))
    try:
        message, descriptors = _receive(connection, size + 1)
    except TimeoutError:
        raise DeadlineExceeded(f"{link}: the other end is silent", link=link) from None
    except OSError as error:
        raise PeerLost(f"{link}: the other end went away: {error.strerror}", link=link) from error
    if len(message) == size and len(descriptors) == count:
        return message, descriptors
    for descriptor in descriptors:
        os.close(descriptor)
    if not message:
        raise PeerLost(f"{link}: the other end could not open; its own error says why", link=link)
    raise LinkError(f"{link}: the other end speaks another version", link=link)


def _receive(connection: socket.socket, size: int) -> tuple[bytes, list[int]]:
    """As socket.recv_fds, which drops its flags: descriptors must not reach children by exec."""
    found = array.array("i")
    room = socket.CMSG_SPACE(_MOST_DESCRIPTORS * found.itemsize)
    message, ancillary, _, _ = connection.recvmsg(size, room, socket.MSG_CMSG_CLOEXEC)
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            found.frombytes(data[: len(data) - len(data) % found.itemsize])
    return message, list(found)


def credentials(connection: socket.socket) -> tuple[int, int]:
    """Process and user at the other end; process 0 when it is in another pid namespace."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(raw)
    return pid, uid


class Liveness:
    """Tells when the other end is gone: its socket breaks, or its process ends.

    The process is watched as well because a forked child would keep the socket open.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._connection = connection
        self.peer = credentials(connection)[0]
        self._process = _watch(self.peer)
        self._poll = select.poll()
        for descriptor in self.descriptors:
            self._poll.register(descriptor, select.POLLIN)

    @property
    def descriptors(self) -> list[int]:
        """To poll: any event on them means that the other end is gone."""
        return [self._connection.fileno(), *([self._process] if self._process >= 0 else [])]

    def is_alive(self) -> bool:
        """Whether the other end is still there, without waiting."""
        return not self._poll.poll(0)

    def close(self) -> None:
        """Let the other end see that this one is gone. May be repeated."""
        self._connection.close()
        if self._process >= 0:
            with contextlib.suppress(OSError):
                os.close(self._process)
            self._process = -1


def _watch(pid: int) -> int:
    """A descriptor that becomes readable when the process ends, or -1."""
    if pid in (0, os.getpid()) or not hasattr(os, "pidfd_open"):
        return -1
    try:
        return os.pidfd_open(pid)
    except OSError:
        return -1
