"""Families with Mamba-2 layers: Nemotron-H and the Granite 4 hybrids."""

from __future__ import annotations

from dataclasses import replace

from arcpp.errors import BadModel

from . import blocks
from .fields import Fields
from .inventory import Inventory, total
from .model import FULL, MAMBA, NONE
from .shapes import EVERYWHERE, Family, LayerShape, attention_width, layer_count, state_dtype


def nemotron_h(text: Fields, _whole: Fields) -> Family:
    """Nemotron-H: one block per layer, Mamba-2, attention, MLP or experts."""
    hidden, pattern = text.count("hidden_size"), text.text("hybrid_override_pattern")
    if pattern is None or len(pattern) != layer_count(text) or len(pattern) > 1024:
        raise BadModel(f"{text.where}: hybrid_override_pattern", pattern, "is missing or too short")
    norm = Inventory(0, hidden)
    mixer, state = blocks.mamba2(
        hidden,
        heads=text.count("mamba_num_heads"),
        size=text.count("mamba_head_dim"),
        groups=text.count("n_groups", "mamba_n_groups"),
        states=text.count("ssm_state_size", "mamba_state_dim"),
        kernel=text.count("conv_kernel", "mamba_d_conv", least=2),
    )
    state = replace(state, ssm_dtype=state_dtype(text, "mamba_ssm_cache_dtype") or "float32")
    kinds = {
        "M": lambda: LayerShape(MAMBA, total([mixer, norm]), 3 * state.conv_dim, state=state),
        "*": lambda: LayerShape(
            FULL, total([blocks.attention(text), norm]), attention_width(text),
            blocks.kv_shape(text),
        ),
        "-": lambda: LayerShape(
            NONE, total([Inventory(2 * hidden * text.count("intermediate_size")), norm]),
            2 * text.count("intermediate_size"),
        ),
        "E": lambda: _nemotron_experts(text, norm),
    }  # fmt: skip
    for letter in pattern:
        if letter not in kinds:
            raise BadModel(f"{text.where}: hybrid_override_pattern", letter, "is not M, *, - or E")
    made = {letter: kinds[letter]() for letter in sorted(set(pattern))}
    layers = tuple(made[letter] for letter in pattern)
    chunk = text.count("chunk_size", default=2048)
    return Family(layers, EVERYWHERE, hidden, mamba_chunk=chunk, rotary=0)


def _nemotron_experts(text: Fields, norm: Inventory) -> LayerShape:
    hidden, routed = text.count("hidden_size"), blocks.experts(text, matrices=2)
    if text.has("moe_latent_size"):
        raise BadModel(text.where, "moe_latent_size", "is not supported")
    shared = text.count("moe_shared_expert_intermediate_size", default=0, least=0) * text.count(
        "n_shared_experts", default=1, least=0
    )
    number = text.count("n_routed_experts", "num_experts")
    parts = [routed, Inventory(2 * hidden * shared, 0, wide=number), norm]
    chosen = text.count("num_experts_per_tok")
    width = chosen * (2 * text.count("moe_intermediate_size") + hidden) + 2 * shared
    return LayerShape(NONE, total(parts), width)


def granite_hybrid(text: Fields, _whole: Fields) -> Family:
    """Granite 4 hybrid: Mamba-2 with attention between, experts and a shared MLP."""
    hidden, count = text.count("hidden_size"), layer_count(text)
    kinds = text.texts("layer_types", count) or []
    if not kinds:
        raise BadModel(text.where, "layer_types", "is missing")
    expand = text.count("mamba_expand", default=2)
    heads = text.count("mamba_n_heads")
    size = text.count("mamba_d_head", default=0, least=0) or expand * hidden // heads
    mixer, state = blocks.mamba2(
        hidden,
        heads=heads,
        size=size,
        groups=text.count("mamba_n_groups"),
        states=text.count("mamba_d_state"),
        kernel=text.count("mamba_d_conv", least=2),
    )
    shared = text.count("shared_intermediate_size", default=0, least=0)
    feed = [blocks.mlp(hidden, shared), Inventory(0, 2 * hidden)]
    width = 3 * shared
    if text.count("num_local_experts", "num_experts", default=0, least=0):
        feed.append(blocks.experts(text))
        chosen = text.count("num_experts_per_tok")
        width += chosen * (3 * text.count("moe_intermediate_size", "intermediate_size") + hidden)
    mamba = LayerShape(MAMBA, total([mixer, *feed]), max(width, 3 * state.conv_dim), state=state)
    attention = LayerShape(
        FULL, total([blocks.attention(text), *feed]), max(width, attention_width(text)),
        blocks.kv_shape(text),
    )  # fmt: skip
    for kind in kinds:
        if kind not in ("mamba", "attention", FULL):
            raise BadModel(f"{text.where}: layer_types", kind, "is not mamba or attention")
    layers = tuple(mamba if kind == "mamba" else attention for kind in kinds)
    chunk = text.count("mamba_chunk_size", "chunk_size", default=2048)
    rotary = 1 if text.text("position_embedding_type") == "rope" else 0
    return Family(layers, EVERYWHERE, hidden, mamba_chunk=chunk, rotary=rotary)
