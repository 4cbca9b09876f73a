"""The header that precedes a boundary on a link: fixed size, plain struct, no pickle.

A frame is one hop: the header, then the tensors' bytes in the header's order, each contiguous
and unpadded. The header is all the receiver needs to allocate and to check what it gets.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from arcpp.errors import LinkCorrupt

FRAME_HEADER_BYTES = 4096

_MAGIC = b"ARCP"
_VERSION = 1
_PREFIX = struct.Struct("<4sBBQQ")  # magic, version, tensors, step, payload bytes
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
    """One hop as announced by its header. step counts hops on this link from 0."""

    step: int
    tensors: tuple[TensorSpec, ...]

    @property
    def nbytes(self) -> int:
        """Payload of this hop in bytes."""
        return sum(tensor.nbytes for tensor in self.tensors)


def encode_frame(frame: Frame) -> bytes:
    """Header of exactly FRAME_HEADER_BYTES. Raises ValueError for what the format cannot say."""
    if len(frame.tensors) > _MAX_TENSORS:
        raise ValueError(f"{len(frame.tensors)} tensors in one hop, at most {_MAX_TENSORS}")
    names = [tensor.name for tensor in frame.tensors]
    if len(set(names)) != len(names):
        raise ValueError(f"two tensors of one name in a hop: {', '.join(names)}")
    described = b"".join(_describe(tensor) for tensor in frame.tensors)
    try:
        prefix = _PREFIX.pack(_MAGIC, _VERSION, len(frame.tensors), frame.step, frame.nbytes)
    except struct.error as error:
        raise ValueError(f"hop {frame.step} of {frame.nbytes} bytes: {error}") from None
    header = prefix + described
    if len(header) > FRAME_HEADER_BYTES:
        raise ValueError(f"header of {len(header)} bytes, at most {FRAME_HEADER_BYTES}")
    return header.ljust(FRAME_HEADER_BYTES, b"\0")


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
        frame, announced = _parse(bytes(header))
    except (struct.error, IndexError, UnicodeDecodeError, ValueError) as error:
        raise LinkCorrupt(
            f"{link}: unreadable frame header ({error})", link=link, step=step
        ) from None
    if frame.step != step:
        raise LinkCorrupt(
            f"{link}: hop {frame.step} arrived where hop {step} was due", link=link, step=step
        )
    if frame.nbytes != announced:
        raise LinkCorrupt(
            f"{link}: hop {step} announces {announced} bytes for tensors of {frame.nbytes}",
            link=link,
            step=step,
        )
    return frame


def _parse(header: bytes) -> tuple[Frame, int]:
    if len(header) != FRAME_HEADER_BYTES:
        raise ValueError(f"{len(header)} bytes instead of {FRAME_HEADER_BYTES}")
    magic, version, count, step, nbytes = _PREFIX.unpack_from(header)
    if magic != _MAGIC or version != _VERSION or count > _MAX_TENSORS:
        raise ValueError("not a frame of this version")
    at, tensors = _PREFIX.size, []
    for _ in range(count):
        name_bytes, code, dims = struct.unpack_from("<BBB", header, at)
        if not 0 < name_bytes <= _MAX_NAME or dims > _MAX_DIMS:
            raise ValueError("a tensor's description is out of range")
        at += 3
        name = header[at : at + name_bytes].decode()
        at += name_bytes
        shape = struct.unpack_from(f"<{dims}Q", header, at)
        at += 8 * dims
        tensors.append(TensorSpec(name, _DTYPES[code], shape))
    if len({tensor.name for tensor in tensors}) != len(tensors):
        raise ValueError("two tensors of one name")
    return Frame(step, tuple(tensors)), nbytes
