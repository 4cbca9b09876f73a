"""Sizes of an OpenVINO IR: constants by owning layer, as packed in the ``.bin``.

The XML is read as a stream by expat with declarations of entities and document types refused,
and with bounds on size, depth, number of elements and length of a tag; no tensor is read. A
constant without a telling name belongs to the layer of the first named operation that it flows
into; what flows into no layer (RoPE tables, masks) is the role ``shared``, which every stage keeps.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn
from xml.parsers import expat

from arcpp.errors import BadModel

from .files import check_plain, names_in, unreadable
from .model import SHARED

# Exports have 1 to 100 MB of XML, the most where each of 128 experts has operations of its own:
# some 100,000, each with one to three edges. Tags have hundreds of bytes.
_XML_LIMIT = 256 * 1024**2
_DEPTH_LIMIT = 64
_LAYER_LIMIT = 1_000_000
_EDGE_LIMIT = 4_000_000
_TAG_LIMIT = 4 * 1024**2
_CHUNK = 1024**2
_BITS = {
    "u1": 1, "u2": 2, "u3": 3, "u4": 4, "i4": 4, "nf4": 4, "f4e2m1": 4, "u6": 6, "u8": 8, "i8": 8,
    "boolean": 8, "f8e4m3": 8, "f8e5m2": 8, "f8e8m0": 8, "u16": 16, "i16": 16, "f16": 16,
    "bf16": 16, "u32": 32, "i32": 32, "f32": 32, "u64": 64, "i64": 64, "f64": 64,
}  # fmt: skip
_NUMBER = re.compile(r"\d{1,18}", re.ASCII)
_SHAPE = re.compile(r"\d{1,18}(,\d{1,18}){0,31}", re.ASCII)
_INDEX = re.compile(r"(?:^|[._])layers\.(\d{1,6})(?:[./]|$)")
_VISION = re.compile(r"openvino_vision_.*\.xml")
_ROLES = (
    ("lm_head", re.compile(r"(?:^|[._])lm_head(?:[./]|$)")),
    ("embed", re.compile(r"(?:^|[._])embed_tokens(?:[./]|$)")),
    ("final_norm", re.compile(r"(?:^|[.])(?:norm|norm_f|final_layernorm)(?:[./]|$)")),
)


@dataclass
class _Graph:
    """Top-level operations of one IR: constants, names and edges (ids as written)."""

    names: dict[str, str] = field(default_factory=dict)
    constants: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    edges: dict[str, list[str]] = field(default_factory=dict)


class _Reader:
    """Expat handlers that fill a _Graph. Constants inside a Loop belong to the Loop."""

    def __init__(self, path: Path, data_bytes: int) -> None:
        self.graph = _Graph()
        self._path, self._data_bytes = path, data_bytes
        self._depth = self._layers = self._edges = self._fed = 0
        self._outer: list[str] = []  # ids of the layers we are in, outermost first
        self._constant = False
        self.parser = expat.ParserCreate()
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.StartDoctypeDeclHandler = self._declared
        self.parser.EntityDeclHandler = self._declared

    def feed(self, chunk: bytes, *, last: bool = False) -> None:
        """More of the file. Raises BadModel, ExpatError."""
        self.parser.Parse(chunk, last)
        self._fed += len(chunk)
        # Expat looks at an unfinished tag anew with every chunk: without a bound, quadratic.
        if self._fed - max(0, self.parser.CurrentByteIndex) > _TAG_LIMIT + _CHUNK:
            self._refuse(self._fed, f"bytes hold a tag that is too long (limit {_TAG_LIMIT})")

    def _refuse(self, value: object, right: str) -> NoReturn:
        raise BadModel(str(self._path), value, right)

    def _declared(self, *_: object) -> None:
        self._refuse("DOCTYPE", "or an entity is declared: an IR has neither")

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        self._depth += 1
        if self._depth > _DEPTH_LIMIT:
            self._refuse(self._depth, f"levels of nesting is too deep (limit {_DEPTH_LIMIT})")
        if tag == "layer":
            self._layers += 1
            if self._layers > _LAYER_LIMIT:
                self._refuse(self._layers, "operations are too many")
            number = attributes.get("id", "")
            if not self._outer:
                self.graph.names[number] = attributes.get("name", "")
            self._outer.append(number)
            self._constant = attributes.get("type") == "Const"
        elif tag == "data" and self._constant and self._outer:
            self._data(attributes)
        elif tag == "edge" and not self._outer:
            self._edges += 1
            if self._edges > _EDGE_LIMIT:
                self._refuse(self._edges, "edges are too many")
            source, target = attributes.get("from-layer", ""), attributes.get("to-layer", "")
            self.graph.edges.setdefault(source, []).append(target)

    def _end(self, tag: str) -> None:
        self._depth -= 1
        if tag == "layer" and self._outer:
            self._outer.pop()
            self._constant = False

    def _data(self, attributes: dict[str, str]) -> None:
        offset, size = attributes.get("offset", ""), attributes.get("size", "")
        if not (_NUMBER.fullmatch(offset) and _NUMBER.fullmatch(size)):
            self._refuse(offset or size, "is not the place of a constant")
        begin, count = int(offset), int(size)
        if begin + count > self._data_bytes:
            right = f"ends a constant beyond the {self._data_bytes} bytes of the .bin"
            self._refuse(begin + count, right)
        kind = attributes.get("element_type", "")
        if kind != "string":
            self._check_size(kind, attributes.get("shape", ""), count)
        self.graph.constants.setdefault(self._outer[0], []).append((begin, count))

    def _check_size(self, kind: str, shape: str, count: int) -> None:
        text = shape.replace(" ", "")
        if kind not in _BITS or (text and not _SHAPE.fullmatch(text)):
            self._refuse(f"{kind[:20]} {text[:60]}", "is no element type and shape of a constant")
        elements = math.prod(int(size) for size in text.split(",")) if text else 1
        if -(-elements * _BITS[kind] // 8) != count:
            self._refuse(count, f"bytes contradict a constant of {kind} {text[:60]}")


def _check_total(*paths: Path) -> None:
    """Refuse (BadModel) XML that is larger than a model's, in one file or in several."""
    total = 0
    for path in paths:
        check_plain(path)
        try:
            total += path.stat().st_size
        except OSError as error:
            raise unreadable(path, error) from None
    if total > _XML_LIMIT:
        raise BadModel(str(paths[0]), total, f"bytes of XML are too many (limit {_XML_LIMIT})")


def _read(path: Path) -> _Graph:
    weights = path.with_suffix(".bin")
    try:
        _check_total(path)
        data_bytes = weights.stat().st_size if weights.exists() else 0
        reader = _Reader(path, data_bytes)
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                reader.feed(chunk)
            reader.feed(b"", last=True)
    except OSError as error:
        raise unreadable(path, error) from None
    except (expat.ExpatError, LookupError, ValueError) as error:  # the last two: its encoding
        raise BadModel(str(path), str(error)[:120], "is why this is not valid XML") from None
    return reader.graph


def _named(name: str) -> int | str | None:
    match = _INDEX.search(name)
    if match is not None:
        return int(match[1])
    for role, pattern in _ROLES:
        if pattern.search(name):
            return role
    return None


def _owners(graph: _Graph) -> dict[str, int | str]:
    """Owner of every operation that has a telling name or flows into one that has: its own
    name's, or of the nearest of those, the first by the order of edges among equally near.

    Linear: breadth first from the named ones against the edges, so that the owner of everything
    nearer is known by then.
    """
    sources: dict[str, list[str]] = {}
    for source, targets in graph.edges.items():
        for target in targets:
            sources.setdefault(target, []).append(source)
    owners = {n: owner for n, name in graph.names.items() if (owner := _named(name)) is not None}
    steps = dict.fromkeys(owners, 0)
    queue = deque(owners)
    while queue:
        node = queue.popleft()
        if node not in owners:
            near = steps[node] - 1
            owners[node] = owners[next(n for n in graph.edges[node] if steps.get(n) == near)]
        for source in sources.get(node, ()):
            if source not in steps:
                steps[source] = steps[node] + 1
                queue.append(source)
    return owners


def ir_sizes(path: Path) -> dict[int | str, int]:
    """Bytes by layer index or role in one IR; each place in the ``.bin`` is counted once.

    Raises BadModel on XML that is not an IR, entities, and constants outside the ``.bin``.
    """
    graph = _read(path)
    if not graph.names:
        raise BadModel(str(path), path.name, "holds no operations: not an OpenVINO IR")
    sizes: dict[int | str, int] = {}
    counted: set[tuple[int, int]] = set()
    owners = _owners(graph)
    for number, places in graph.constants.items():
        fresh = [place for place in places if place not in counted]
        counted.update(fresh)
        if fresh:
            owner = owners.get(number, SHARED)
            sizes[owner] = sizes.get(owner, 0) + sum(size for _, size in fresh)
    return sizes


def _total(paths: Iterable[Path]) -> int:
    return sum(sum(ir_sizes(path).values()) for path in paths)


def main_ir(names: Collection[str]) -> str | None:
    """The language model's XML among the ``names`` in a folder, or None when none is an IR's."""
    known = ("openvino_language_model.xml", "openvino_model.xml")
    return next((name for name in known if name in names), None)


def folder_sizes(folder: Path) -> dict[int | str, int]:
    """Bytes by layer or role over all IRs of an exported model. Raises BadModel."""
    names = names_in(folder)
    main = folder / (main_ir(names) or "openvino_model.xml")
    parts = {
        "embed": [name for name in names if name == "openvino_text_embeddings_model.xml"],
        "vision": [name for name in names if _VISION.fullmatch(name)],
        "mtp": [name for name in names if name == "openvino_mtp_model.xml"],
    }
    paths = {role: [folder / name for name in found] for role, found in parts.items()}
    _check_total(main, *(path for found in paths.values() for path in found))
    sizes = ir_sizes(main)
    for role, found in paths.items():
        if found:
            sizes[role] = sizes.get(role, 0) + _total(found)
    return sizes
