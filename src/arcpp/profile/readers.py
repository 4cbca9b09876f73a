"""Read ``config.json`` and safetensors headers that may be broken or hostile.

Every reader is bounded: files are size-checked before they are read, JSON is depth-checked
before it is parsed, and every problem is one BadModel line naming the file.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from arcpp.errors import BadModel

from .dtypes import SAFETENSORS_BITS

_CONFIG_LIMIT = 16 * 1024**2
_HEADER_LIMIT = 100 * 1000**2  # the format's own limit
_INDEX_LIMIT = 256 * 1024**2
_DEPTH_LIMIT = 64
_SHARD_LIMIT = 10_000
# A JSON string; one that never ends takes the rest, so that matching stays linear.
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)
_ONE_KIND = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


@dataclass(frozen=True)
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
        if not path.is_file():
            raise BadModel(str(path), path.name, "is not there, or is not a plain file")
        size = path.stat().st_size
        if size > limit:
            raise BadModel(str(path), size, f"bytes is too large (limit {limit})")
        raw = path.read_bytes()
    except OSError as error:
        raise BadModel(str(path), error.strerror, "cannot be read") from None
    return parse_json(raw, str(path))


def parse_json(raw: bytes, what: str) -> dict[str, Any]:
    """The JSON object in ``raw``; ``what`` names it in errors (BadModel)."""
    _check_depth(raw, what)
    try:
        value = json.loads(raw.decode("utf-8"), object_pairs_hook=_no_duplicates)
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


def _check_depth(raw: bytes, what: str) -> None:
    """Refuse deep nesting before a parser recurses into it (brackets in strings do not count).

    Linear: strings are cut out, and each of at most 64 rounds removes one level.
    """
    if raw.count(b"[") + raw.count(b"{") <= _DEPTH_LIMIT:
        return
    left = _STRING.sub(b"", raw).translate(_ONE_KIND, _NO_BRACKETS)
    for _ in range(_DEPTH_LIMIT):
        if b"[]" not in left:
            break
        left = left.replace(b"[]", b"")
    if b"[]" in left or left.count(b"[") > _DEPTH_LIMIT:
        right = f"deep: more levels of nesting than {_DEPTH_LIMIT}"
        raise BadModel(what, "too", right)


def read_header(path: Path) -> list[TensorInfo]:
    """Tensors of one ``.safetensors`` file, from its header alone.

    Raises BadModel on a truncated file, a header longer than the file, offsets beyond it,
    overlapping or gapped tensors, unknown dtypes and sizes that contradict the shape.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            prefix = file.read(8)
            if len(prefix) < 8:
                raise BadModel(str(path), size, "bytes is too short for a safetensors file")
            (length,) = struct.unpack("<Q", prefix)
            if length > _HEADER_LIMIT or length > size - 8:
                raise BadModel(
                    str(path), length, f"bytes of header cannot be in a file of {size} bytes"
                )
            raw = file.read(length)
    except OSError as error:
        raise BadModel(str(path), error.strerror, "cannot be read") from None
    header = parse_json(raw, f"{path} header")
    header.pop("__metadata__", None)
    return _check_header(path, header, size - 8 - length)


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
    if not isinstance(entry, dict):
        raise BadModel(where, shown, "is not described by a JSON object")
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in SAFETENSORS_BITS:
        raise BadModel(where, dtype, f"is the dtype of {shown!r}, which arcpp does not know")
    if not _counts(shape) or len(shape) > 64:
        raise BadModel(where, shown, "has no valid shape")
    if not _counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise BadModel(where, shown, "has no valid data_offsets")
    begin, end = offsets
    if end > data_bytes:
        raise BadModel(where, shown, f"ends at byte {end}, beyond the {data_bytes} in the file")
    tensor = TensorInfo(name, dtype, tuple(shape), end - begin)
    if tensor.elements * SAFETENSORS_BITS[dtype] != 8 * (end - begin):
        raise BadModel(where, shown, f"takes {end - begin} bytes, which its shape contradicts")
    return begin, end, tensor


def _counts(value: object) -> TypeGuard[list[int]]:
    """Whether ``value`` is a list of integers from 0 to 2**62."""
    return isinstance(value, list) and all(type(n) is int and 0 <= n < 2**62 for n in value)


def read_checkpoint(folder: Path) -> Iterator[TensorInfo]:
    """Tensors of every safetensors file that ``folder``'s index names, or of its only one.

    Raises BadModel when a shard is missing or a tensor appears twice.
    """
    seen: set[str] = set()
    for path in _shards(folder):
        for tensor in read_header(path):
            if tensor.name in seen:
                raise BadModel(str(path), tensor.name[:120], "appears in two files")
            seen.add(tensor.name)
            yield tensor


def _shards(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if index.exists():
        weight_map = read_json(index, _INDEX_LIMIT).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise BadModel(str(index), "weight_map", "is missing or empty")
        names = sorted({str(name) for name in weight_map.values()})
        for name in names:
            if Path(name).name != name or not (folder / name).is_file():
                raise BadModel(str(index), name[:120], "is named here but is not in the folder")
        return [folder / name for name in names]
    shards = sorted(folder.glob("*.safetensors"))
    if len(shards) > _SHARD_LIMIT:
        raise BadModel(str(folder), len(shards), "safetensors files are too many")
    return shards
