"""Read ``config.json`` and safetensors headers that may be broken or hostile.

Every reader is bounded: files are size-checked before they are read, the values and the depth of
JSON are counted before it is parsed, and every problem is one BadModel line naming the file.

The limits are about twice what the largest published checkpoints need (some 200,000 tensors: a
trillion weights in experts of their own, three tensors each), and keep the worst file at seconds
and hundreds of MB.
"""

from __future__ import annotations

import json
import math
import re
import struct
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

from arcpp.errors import BadModel

from .dtypes import SAFETENSORS_BITS
from .files import check_plain, is_plain, names_in, unreadable

_CONFIG_LIMIT = 16 * 1024**2
_HEADER_LIMIT = 32 * 1024**2  # the format allows 100 MB, which would be 700,000 tensors in a file
_HEADERS_LIMIT = 64 * 1024**2  # of all files of a checkpoint
_INDEX_LIMIT = 64 * 1024**2
_VALUE_LIMIT = 4_000_000
_DEPTH_LIMIT = 64
_SHARD_LIMIT = 10_000
# A JSON string; one that never ends takes the rest, so that matching stays linear.
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)
# Up to so many strings, and as much of what stands between them: what one look at brackets takes.
_STRETCH = re.compile(rb'(?:[^"]{1,4096}+|"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)){1,20000}+', re.DOTALL)
_ONE_KIND = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of a checkpoint: its safetensors dtype, element count and stored bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    stored_bytes: int

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


def read_json(path: Path, limit: int = _CONFIG_LIMIT) -> dict[str, Any]:
    """The JSON object in ``path``. Raises BadModel when it is not one, too large or too deep."""
    try:
        check_plain(path)
        size = path.stat().st_size
        if size > limit:
            raise BadModel(str(path), size, f"bytes is too large (limit {limit})")
        raw = path.read_bytes()
    except OSError as error:
        raise unreadable(path, error) from None
    return parse_json(raw, str(path))


def parse_json(
    raw: bytes, what: str, made: Callable[[list[tuple[str, Any]]], Any] | None = None
) -> dict[str, Any]:
    """The JSON object in ``raw``; ``what`` names it in errors (BadModel). made: what becomes of an
    object's keys and values; a dict by default."""
    _check_values(raw, what)
    _check_depth(raw, what)
    try:
        value = json.loads(raw.decode("utf-8"), object_pairs_hook=made or _no_duplicates)
    except (ValueError, RecursionError) as error:
        reason = str(error).splitlines()[0][:120] if str(error) else type(error).__name__
        raise BadModel(what, reason, "is why this is not valid JSON") from None
    if not isinstance(value, dict):
        raise BadModel(what, type(value).__name__, "found where a JSON object is expected")
    return value


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"key {twice[:60]!r} appears twice")
    return result


def _check_values(raw: bytes, what: str) -> None:
    """Refuse more values than a checkpoint has before a parser makes objects of them: three bytes
    (``[],``) become sixty. A comma in a string counts too."""
    values = raw.count(b",") + raw.count(b"[") + raw.count(b"{")
    if values > _VALUE_LIMIT:
        raise BadModel(what, values, f"values are too many (limit {_VALUE_LIMIT})")


def _check_depth(raw: bytes, what: str) -> None:
    """Refuse deep nesting before a parser recurses into it (brackets in strings do not count).

    Linear: strings are cut out, in stretches because each is an object until they are joined, and
    each of at most 64 rounds removes one level.
    """
    if raw.count(b"[") + raw.count(b"{") <= _DEPTH_LIMIT:
        return
    stretches = (_STRING.sub(b"", match[0]) for match in _STRETCH.finditer(raw))
    left = b"".join(part.translate(_ONE_KIND, _NO_BRACKETS) for part in stretches)
    for _ in range(_DEPTH_LIMIT):
        if b"[]" not in left:
            break
        left = left.replace(b"[]", b"")
    if b"[]" in left or left.count(b"[") > _DEPTH_LIMIT:
        right = f"deep: more levels of nesting than {_DEPTH_LIMIT}"
        raise BadModel(what, "too", right)


class _Entry(NamedTuple):
    """What a header says of one tensor, unchecked: a third of what the parser's objects take."""

    dtype: Any
    shape: Any
    offsets: Any


def _header_part(pairs: list[tuple[str, Any]]) -> dict[str, Any] | _Entry:
    values = _no_duplicates(pairs)
    if not values.keys() >= {"dtype", "shape", "data_offsets"}:
        return values
    dtype = values["dtype"]
    return _Entry(
        sys.intern(dtype) if isinstance(dtype, str) else dtype,
        _packed(values["shape"]),
        _packed(values["data_offsets"]),
    )


def _packed(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def read_header(path: Path) -> list[TensorInfo]:
    """Tensors of one ``.safetensors`` file, from its header alone.

    Raises BadModel on a truncated file, a header longer than the file or than any checkpoint's,
    offsets beyond the file, overlapping or gapped tensors, unknown dtypes and sizes that
    contradict the shape.
    """
    try:
        check_plain(path)
        size = path.stat().st_size
        with path.open("rb") as file:
            length = _header_length(path, file.read(8), size)
            raw = file.read(length)
    except OSError as error:
        raise unreadable(path, error) from None
    header = parse_json(raw, f"{path} header", _header_part)
    header.pop("__metadata__", None)
    return _check_header(path, header, size - 8 - length)


def _header_length(path: Path, prefix: bytes, size: int) -> int:
    """Bytes of header that ``prefix``, the first 8 bytes of a file of ``size``, announces."""
    if len(prefix) < 8:
        raise BadModel(str(path), size, "bytes is too short for a safetensors file")
    (length,) = struct.unpack("<Q", prefix)
    if length > size - 8:
        raise BadModel(str(path), length, f"bytes of header cannot be in a file of {size} bytes")
    if length > _HEADER_LIMIT:
        raise BadModel(str(path), length, f"bytes of header are too many (limit {_HEADER_LIMIT})")
    return int(length)


def _check_header(path: Path, header: dict[str, Any], data_bytes: int) -> list[TensorInfo]:
    spans: list[tuple[int, int, TensorInfo]] = []
    for name, entry in header.items():
        spans.append(_tensor(path, name, entry, data_bytes))
    spans.sort(key=lambda span: (span[0], span[1]))
    at = 0
    for begin, end, tensor in spans:
        if begin != at:
            kind = "overlaps the tensor before it" if begin < at else "leaves a gap before it"
            raise BadModel(f"{path} header", tensor.name[:120], kind)
        at = end
    if at != data_bytes:
        raise BadModel(str(path), data_bytes, f"bytes of data, but the header describes {at}")
    return [tensor for _, _, tensor in spans]


def _tensor(path: Path, name: str, entry: object, data_bytes: int) -> tuple[int, int, TensorInfo]:
    where, shown = f"{path} header", name[:120]
    if not isinstance(entry, _Entry):
        raise BadModel(where, shown, "is not described by dtype, shape and data_offsets")
    dtype, shape, offsets = entry
    if not isinstance(dtype, str) or dtype not in SAFETENSORS_BITS:
        raise BadModel(where, dtype, f"is the dtype of {shown!r}, which arcpp does not know")
    if not _counts(shape) or len(shape) > 64:
        raise BadModel(where, shown, "has no valid shape")
    if not _counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise BadModel(where, shown, "has no valid data_offsets")
    begin, end = offsets
    if end > data_bytes:
        raise BadModel(where, shown, f"ends at byte {end}, beyond the {data_bytes} in the file")
    tensor = TensorInfo(name, dtype, shape, end - begin)
    if tensor.elements * SAFETENSORS_BITS[dtype] != 8 * (end - begin):
        raise BadModel(where, shown, f"takes {end - begin} bytes, which its shape contradicts")
    return begin, end, tensor


def _counts(value: object) -> TypeGuard[tuple[int, ...]]:
    """Whether ``value`` is a tuple of integers from 0 to 2**62."""
    return isinstance(value, tuple) and all(type(n) is int and 0 <= n < 2**62 for n in value)


def read_checkpoint(folder: Path) -> Iterator[TensorInfo]:
    """Tensors of every safetensors file that ``folder``'s index names, or of its only one.

    Raises BadModel when a shard is missing, a tensor appears twice, or the headers together are
    larger than any checkpoint's; the last before any is parsed.
    """
    shards = _shards(folder)
    _check_headers(folder, shards)
    seen: set[str] = set()
    for path in shards:
        for tensor in read_header(path):
            if tensor.name in seen:
                raise BadModel(str(path), tensor.name[:120], "appears in two files")
            seen.add(tensor.name)
            yield tensor


def _check_headers(folder: Path, shards: list[Path]) -> None:
    if len(shards) > _SHARD_LIMIT:
        raise BadModel(str(folder), len(shards), "safetensors files are too many")
    total = 0
    for path in shards:
        try:
            check_plain(path)
            with path.open("rb") as file:
                total += _header_length(path, file.read(8), path.stat().st_size)
        except OSError as error:
            raise unreadable(path, error) from None
    if total > _HEADERS_LIMIT:
        right = f"bytes of safetensors headers are too many (limit {_HEADERS_LIMIT})"
        raise BadModel(str(folder), total, right)


def _shards(folder: Path) -> list[Path]:
    held, index = names_in(folder), folder / "model.safetensors.index.json"
    if index.name in held:
        weight_map = read_json(index, _INDEX_LIMIT).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise BadModel(str(index), "weight_map", "is missing or empty")
        names = sorted({str(name) for name in weight_map.values()})
        for name in names:
            if Path(name).name != name or not is_plain(folder / name):
                raise BadModel(str(index), name[:120], "is named here but is not in the folder")
        return [folder / name for name in names]
    return [folder / name for name in held if name.endswith(".safetensors")]
