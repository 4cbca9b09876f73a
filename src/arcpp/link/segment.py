"""Memory that two ends share: anonymous, of a fixed size, there in full before it is used.

memfd first: it is not bounded by /dev/shm (64 MB in a container by default), has no name and is
gone with its last descriptor. Named shared memory is the fallback; its name is removed before
anybody else sees the descriptor. Either way the descriptor travels over a socket (`meeting`).
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import secrets

from arcpp.errors import LinkError
from arcpp.units import format_gib

MEMFD, NAMED = "memfd", "shm"
_FOLDER = "/dev/shm"  # noqa: S108 (O_EXCL, a random name, 0600)


def create_segment(size: int, *, link: str, kinds: tuple[str, ...] = (MEMFD, NAMED)) -> int:
    """Descriptor of ``size`` bytes of zeroed memory, mode 0600, every page reserved.

    kinds: what to try, in that order. Raises LinkError that says how much was needed and why the
    last one had no room.
    """
    refused = ""
    for kind in kinds:
        try:
            return _reserved(_memfd() if kind == MEMFD else _named(), size)
        except OSError as error:
            refused = _why(kind, error)
    raise LinkError(
        f"{link}: needs {format_gib(size)} GiB ({size} bytes) of shared memory, and {refused}",
        link=link,
    )


def map_segment(descriptor: int, size: int, *, link: str) -> mmap.mmap:
    """All of a segment, mapped. It stays mapped until nothing refers to the map any more.

    Raises LinkError when the segment is not of ``size`` bytes or cannot be mapped.
    """
    found = os.fstat(descriptor).st_size
    if found != size:
        raise LinkError(f"{link}: shared memory of {found} bytes, not {size}", link=link)
    populate = getattr(mmap, "MAP_POPULATE", 0)
    try:
        return mmap.mmap(descriptor, size, mmap.MAP_SHARED | populate)
    except OSError as error:
        raise LinkError(
            f"{link}: cannot map {size} bytes of shared memory: {error.strerror}", link=link
        ) from error


def _memfd() -> int:
    if not hasattr(os, "memfd_create"):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    return os.memfd_create("arcpp-link", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)


def _named() -> int:
    path = f"{_FOLDER}/arcpp-{secrets.token_hex(8)}"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    os.unlink(path)
    return descriptor


def _reserved(descriptor: int, size: int) -> int:
    """``descriptor`` with all its pages, so that nobody meets SIGBUS later."""
    import fcntl  # here: the module is imported where there is none (Windows), and not used

    seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    try:
        os.posix_fallocate(descriptor, 0, size)
        with contextlib.suppress(OSError):  # only a memfd can be sealed
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _why(kind: str, error: OSError) -> str:
    if kind == MEMFD:
        return f"memfd_create refuses it: {error.strerror}"
    try:
        room = os.statvfs(_FOLDER)
    except OSError:
        return f"{_FOLDER} cannot be used: {error.strerror}"
    free = room.f_bavail * room.f_frsize
    return (
        f"{_FOLDER} has {format_gib(free)} GiB free ({error.strerror}); "
        "give the container more with --shm-size"
    )
