"""Rotary positions: how long a model may be, and the tables that vLLM computes of them.

Follows config/model.py and model_executor/layers/rotary_embedding of vLLM 0.32.
"""

from __future__ import annotations

from collections.abc import Iterable

from .fields import Fields
from .model import FULL, LINEAR, SLIDING
from .shapes import LayerShape

_LENGTHS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "model_max_length",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
)
#: Kinds whose factor vLLM does not multiply the maximum length by (config/model.py).
_UNSCALED = frozenset(
    {"su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling", "default"}
)
#: Kinds whose table has the original positions times the factor.
_STRETCHED = frozenset({"yarn", "deepseek_yarn", "deepseek_llama_scaling"})
_DEFAULT_LENGTH = 2048
_LARGEST_FACTOR = 1e6


def longest(text: Fields) -> int:
    """The model's own maximum length, as vLLM derives it (2048 when the config is silent)."""
    found = [text.count(name) for name in _LENGTHS if text.has(name)]
    length, factor = min(found) if found else _DEFAULT_LENGTH, 1.0
    for rope in _all(text):
        if _kind(rope) not in _UNSCALED:
            factor = _factor(rope, factor)
    return int(length * factor)


def rope_elements(text: Fields, layers: Iterable[LayerShape]) -> int:
    """Elements of all tables that a stage with every kind of attention layer of ``layers`` keeps.

    Layers of one kind share a table; kinds do where heads and parameters are equal.
    """
    tables: set[tuple[int, int]] = set()
    for kind, head in {(layer.kind, layer.kv.head_dim) for layer in layers if layer.kv is not None}:
        tables.add(_table(text, _of_kind(text, kind), head))
    return sum(rows * width for rows, width in tables)


def _table(text: Fields, rope: Fields | None, head: int) -> tuple[int, int]:
    """Rows and columns of the table for heads of ``head`` elements."""
    positions = text.count("max_position_embeddings", default=_DEFAULT_LENGTH)
    share = text.number("partial_rotary_factor", 1, most=1)
    if rope is None:
        return positions, int(head * share)
    share = rope.number("partial_rotary_factor", share, most=1)
    kind = _kind(rope)
    width = head if kind == "proportional" else rope.count("rope_dim", default=int(head * share))
    original = rope.count("original_max_position_embeddings", default=positions)
    if kind in _STRETCHED:
        return int(original * _factor(rope, 1)), width
    if kind == "longrope":
        return original + positions, width
    return int(positions * _factor(rope, 1)) if kind == "linear" else positions, width


def _of_kind(text: Fields, kind: str) -> Fields | None:
    """Parameters of the layers of ``kind``; of all where the config does not tell them apart."""
    for name in ("rope_parameters", "rope_scaling"):
        rope = text.inner(name)
        if rope is not None:
            return rope.inner(kind) if _parts(rope) else rope
    return None


def _all(text: Fields) -> list[Fields]:
    """Parameters of every kind of layer that has its own."""
    for name in ("rope_parameters", "rope_scaling"):
        rope = text.inner(name)
        if rope is not None:
            return _parts(rope) or [rope]
    return []


def _parts(rope: Fields) -> list[Fields]:
    """Parameters by kind of layer, where ``rope`` holds those instead of its own."""
    found = (rope.inner(kind) for kind in (FULL, SLIDING, LINEAR))
    return [part for part in found if part is not None]


def _kind(rope: Fields) -> str:
    return rope.text("rope_type") or rope.text("type") or "default"


def _factor(rope: Fields, default: float) -> float:
    return rope.number("factor", default, most=_LARGEST_FACTOR)
