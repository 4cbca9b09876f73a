"""The header that precedes a boundary on a link: fixed size, plain struct, no pickle.

A frame is one hop: the header, then the tensors' bytes in the header's order, each contiguous.
The header is all the receiver needs to allocate and to check what it gets. A link that moves a
hop in pieces puts the header before each, with the part of the payload that follows.
"""

from __future__ import annotations

import functools
import math
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from arcpp.errors import LinkCorrupt

FRAME_HEADER_BYTES = 4096

_MAGIC = b"ARCP"
_VERSION = 2
_CHECKED = struct.Struct("<4sI")  # magic, crc32 of all that follows
_PREFIX = struct.Struct("<BBHQQQQ")  # version, tensors, bytes of descriptions; step, payload
# bytes, and the piece of the payload that this header precedes: where it starts, its length
_FIXED_BYTES = _CHECKED.size + _PREFIX.size
_MAX_TENSORS = 64
_MAX_DIMS = 8
_MAX_NAME = 64

# Bytes per element of every dtype that may cross; the order is the wire code, append only.
DTYPE_BYTES: Mapping[str, int] = MappingProxyType(
    {
        "bfloat16": 2,
        "float16": 2,
        "float32": 4,
        "float64": 8,
        "int8": 1,
        "int16": 2,
        "int32": 4,
        "int64": 8,
        "uint8": 1,
        "bool": 1,
        "float8_e4m3fn": 1,
        "float8_e5m2": 1,
    }
)
_DTYPES = tuple(DTYPE_BYTES)


@dataclass(frozen=True)
class TensorSpec:
    """One tensor of a boundary: its name, dtype ("bfloat16", as torch spells it) and shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Size of the contiguous tensor in bytes."""
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True)
class BoundarySpec:
    """What crosses between two stages at most: used to size buffers before the first hop."""

    tensors: tuple[TensorSpec, ...]

    @property
    def nbytes(self) -> int:
        """Payload of the largest hop in bytes."""
        return sum(tensor.nbytes for tensor in self.tensors)


@dataclass(frozen=True)
class Frame:
    """One hop as announced by its header. step counts hops on this link from 0.

    payload: bytes of the whole hop as the link lays it out, None for the tensors' own bytes
    without gaps. start, length: the piece of it in bytes; length None for all from start on.
    """

    step: int
    tensors: tuple[TensorSpec, ...]
    payload: int | None = None
    start: int = 0
    length: int | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of this hop's tensors, without gaps."""
        return sum(tensor.nbytes for tensor in self.tensors)


def encode_frame(frame: Frame) -> bytes:
    """Header of exactly FRAME_HEADER_BYTES. Raises ValueError for what the format cannot say."""
    described = describe(frame.tensors)
    payload = frame.nbytes if frame.payload is None else frame.payload
    length = payload - frame.start if frame.length is None else frame.length
    try:
        span = payload, frame.start, length
        header = pack_header(frame.step, len(frame.tensors), described, span)
    except struct.error as error:
        raise ValueError(f"hop {frame.step} of {payload} bytes: {error}") from None
    return header.ljust(FRAME_HEADER_BYTES, b"\0")


def describe(tensors: tuple[TensorSpec, ...]) -> bytes:
    """The part of a header that says which tensors come. Raises ValueError as encode_frame."""
    if len(tensors) > _MAX_TENSORS:
        raise ValueError(f"{len(tensors)} tensors in one hop, at most {_MAX_TENSORS}")
    names = [tensor.name for tensor in tensors]
    if len(set(names)) != len(names):
        raise ValueError(f"two tensors of one name in a hop: {', '.join(names)}")
    described = b"".join(_describe(tensor) for tensor in tensors)
    if _FIXED_BYTES + len(described) > FRAME_HEADER_BYTES:
        raise ValueError(
            f"header of {_FIXED_BYTES + len(described)} bytes, at most {FRAME_HEADER_BYTES}"
        )
    return described


def pack_header(step: int, count: int, described: bytes, span: tuple[int, int, int]) -> bytes:
    """Header without the padding behind it.

    described: as describe() gives it for ``count`` tensors. span: bytes of the payload, and where
    the piece starts in it, and its length.
    """
    said = _PREFIX.pack(_VERSION, count, len(described), step, *span) + described
    return _CHECKED.pack(_MAGIC, zlib.crc32(said)) + said


def _describe(tensor: TensorSpec) -> bytes:
    name = tensor.name.encode()
    if not 0 < len(name) <= _MAX_NAME:
        raise ValueError(f"tensor name {tensor.name!r} is not 1 to {_MAX_NAME} bytes")
    if len(tensor.shape) > _MAX_DIMS:
        raise ValueError(f"tensor {tensor.name!r} has {len(tensor.shape)} dimensions")
    if tensor.dtype not in DTYPE_BYTES:
        raise ValueError(f"tensor {tensor.name!r} has dtype {tensor.dtype}, which cannot cross")
    try:
        dims = struct.pack(f"<{len(tensor.shape)}Q", *tensor.shape)
    except struct.error as error:
        raise ValueError(f"tensor {tensor.name!r} has shape {tensor.shape}: {error}") from None
    code = _DTYPES.index(tensor.dtype)
    return struct.pack("<BBB", len(name), code, len(tensor.shape)) + name + dims


def decode_frame(header: bytes | bytearray | memoryview, *, link: str, step: int) -> Frame:
    """Frame announced by ``header``, which must be hop number ``step`` of ``link``.

    Raises LinkCorrupt when the header is not one, announces another step, or contradicts itself.
    """
    try:
        frame = _parse(header)
    except (struct.error, IndexError, UnicodeDecodeError, ValueError) as error:
        raise LinkCorrupt(
            f"{link}: unreadable frame header ({error})", link=link, step=step
        ) from None
    if frame.step != step:
        raise LinkCorrupt(
            f"{link}: hop {frame.step} arrived where hop {step} was due", link=link, step=step
        )
    return frame


def _parse(header: bytes | bytearray | memoryview) -> Frame:
    if len(header) != FRAME_HEADER_BYTES:
        raise ValueError(f"{len(header)} bytes instead of {FRAME_HEADER_BYTES}")
    header = bytes(header)  # once: shared memory might be another the next time it is looked at
    magic, crc = _CHECKED.unpack_from(header)
    version, count, size, step, payload, start, length = _PREFIX.unpack_from(header, _CHECKED.size)
    if magic != _MAGIC or version != _VERSION or count > _MAX_TENSORS:
        raise ValueError("not a frame of this version")
    said = header[_CHECKED.size : _FIXED_BYTES + size]
    if zlib.crc32(said) != crc or _FIXED_BYTES + size > FRAME_HEADER_BYTES:
        raise ValueError("its checksum does not match")
    tensors, nbytes = _tensors(said[_PREFIX.size :], count)
    if payload < nbytes or start + length > payload:
        raise ValueError(
            f"{length} bytes from {start} of {payload} are announced for tensors of {nbytes}"
        )
    return Frame(
        step, tensors, None if payload == nbytes else payload, start, _all(payload, start, length)
    )


def _all(payload: int, start: int, length: int) -> int | None:
    return None if start + length == payload else length


@functools.lru_cache(maxsize=512)
def _tensors(described: bytes, count: int) -> tuple[tuple[TensorSpec, ...], int]:
    """Tensors of a description and their bytes; kept, because hops repeat their shapes."""
    at, tensors = 0, []
    for _ in range(count):
        name_bytes, code, dims = struct.unpack_from("<BBB", described, at)
        if not 0 < name_bytes <= _MAX_NAME or dims > _MAX_DIMS:
            raise ValueError("a tensor's description is out of range")
        at += 3
        name = described[at : at + name_bytes].decode()
        at += name_bytes
        shape = struct.unpack_from(f"<{dims}Q", described, at)
        at += 8 * dims
        tensors.append(TensorSpec(name, _DTYPES[code], shape))
    if at != len(described):
        raise ValueError("its descriptions are of another length")
    if len({tensor.name for tensor in tensors}) != len(tensors):
        raise ValueError("two tensors of one name")
    return tuple(tensors), sum(tensor.nbytes for tensor in tensors)
