"""A model's layers before their bytes are known, and what most families share."""

from __future__ import annotations

from dataclasses import dataclass

from arcpp.errors import BadModel

from . import blocks
from .dtypes import model_dtype
from .fields import Fields
from .inventory import Inventory, total
from .model import GatedDelta, KvShape, RecurrentState


@dataclass(frozen=True)
class LayerShape:
    """One layer before its bytes are known. width: its widest activation per token."""

    kind: str
    parameters: Inventory
    width: int
    kv: KvShape | None = None
    window: int | None = None
    state: RecurrentState | None = None


@dataclass(frozen=True)
class Family:
    """A model before its bytes are known. duplicates: see ModelProfile. rotary: elements of
    the model's dtype per element of a table of rotary positions (2: float32; 0: no such table).
    unsized: a part whose size only the weights' headers tell."""

    layers: tuple[LayerShape, ...]
    duplicates: frozenset[str]
    final_norm: int
    vision: Inventory | None = None
    mtp: tuple[LayerShape, ...] = ()
    mtp_extra: Inventory | None = None
    delta: GatedDelta | None = None
    mamba_chunk: int | None = None
    vision_width: int = 0
    rotary: int = 1
    unsized: str | None = None


EVERYWHERE = frozenset({"embed", "lm_head"})


def layer_count(text: Fields) -> int:
    count = text.count("num_hidden_layers")
    if count > 1024:
        raise BadModel(f"{text.where}: num_hidden_layers", count, "is more than any model has")
    return count


def state_dtype(text: Fields, name: str) -> str | None:
    """Dtype of recurrent state that the field ``name`` says; None where it says none or auto."""
    value = text.text(name)
    return None if value in (None, "auto") else model_dtype(value, f"{text.where}: {name}")


def attention_width(text: Fields, gated: bool = False) -> int:
    size = blocks.head_dim(text)
    query = text.count("num_attention_heads") * size
    return query * (3 if gated else 2) + 2 * blocks.kv_shape(text).heads * size


def feed_forward(text: Fields) -> tuple[Inventory, int]:
    """The MLP or the experts of a layer, and the widest activation per token."""
    hidden = text.count("hidden_size")
    if not (text.has("num_experts") or text.has("num_local_experts")):
        width = text.count("intermediate_size")
        return blocks.mlp(hidden, width), 3 * width
    routed = blocks.experts(text)
    chosen = text.count("num_experts_per_tok", "num_experts_per_token")
    width = 3 * chosen * text.count("moe_intermediate_size", "intermediate_size")
    shared = text.count("shared_expert_intermediate_size", default=0, least=0)
    if not shared:
        return routed, width + chosen * hidden
    gate = Inventory(0, hidden)
    return total([routed, blocks.mlp(hidden, shared), gate]), width + chosen * hidden + 3 * shared
