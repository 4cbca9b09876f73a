"""Architectures arcpp understands: what each layer is and how large, from ``config.json``.

An architecture that is not in FAMILIES is refused by name (UnknownModel); a plugin can teach
it through the hook ``arcpp_model_profile``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from arcpp.errors import BadModel

from . import blocks
from .fields import Fields
from .inventory import Inventory, total
from .mamba_families import granite_hybrid, nemotron_h
from .model import FULL, LINEAR, SLIDING, KvShape
from .shapes import (
    EVERYWHERE,
    Family,
    LayerShape,
    attention_width,
    feed_forward,
    layer_count,
    state_dtype,
)


def _dense(text: Fields, *, norms: bool, qkv_bias: bool) -> tuple[LayerShape, ...]:
    hidden = text.count("hidden_size")
    feed, width = feed_forward(text)
    attention = blocks.attention(text, norms=norms, qkv_bias=qkv_bias)
    parameters = total([attention, feed, Inventory(0, 2 * hidden)])
    widest = max(width, attention_width(text))
    layer = LayerShape(FULL, parameters, widest, blocks.kv_shape(text))
    return tuple([layer] * layer_count(text))


def llama(text: Fields, _whole: Fields) -> Family:
    """Llama and Mistral. A window is for every layer, unless layer_types says for which."""
    layers = _dense(text, norms=False, qkv_bias=False)
    window = text.count("sliding_window", default=0, least=0)
    kinds = text.texts("layer_types", len(layers)) or [SLIDING] * len(layers)
    if window:
        layers = tuple(
            replace(layer, kind=SLIDING, window=window) if kind == SLIDING else layer
            for layer, kind in zip(layers, _attention_kinds(text, kinds), strict=True)
        )
    return Family(layers, frozenset(), text.count("hidden_size"))


def qwen2(text: Fields, _whole: Fields) -> Family:
    """Qwen2 and Qwen2.5."""
    _no_window(text)
    layers = _dense(text, norms=False, qkv_bias=True)
    return Family(layers, frozenset(), text.count("hidden_size"))


def qwen3(text: Fields, _whole: Fields) -> Family:
    """Qwen3, dense."""
    _no_window(text)
    layers = _dense(text, norms=True, qkv_bias=False)
    return Family(layers, frozenset(), text.count("hidden_size"))


def qwen3_moe(text: Fields, _whole: Fields) -> Family:
    """Qwen3, mixture of experts."""
    _no_window(text)
    layers = _dense(text, norms=True, qkv_bias=False)
    return Family(layers, EVERYWHERE, text.count("hidden_size"))


def _no_window(text: Fields) -> None:
    """Refuse a Qwen with sliding windows switched on: which layers have one is not known here."""
    if text.flag("use_sliding_window", False) and text.has("sliding_window"):
        raise BadModel(f"{text.where}: use_sliding_window", True, "is not supported")


def _hybrid_kinds(text: Fields) -> list[str]:
    count = layer_count(text)
    kinds = text.texts("layer_types", count)
    interval = text.count("full_attention_interval", default=4)
    made = [FULL if (i + 1) % interval == 0 else LINEAR for i in range(count)]
    if kinds is None:
        return made
    for kind in kinds:
        if kind not in (FULL, LINEAR):
            raise BadModel(f"{text.where}: layer_types", kind, "is not a layer of this family")
    if text.has("full_attention_interval") and kinds != made:
        raise BadModel(
            f"{text.where}: layer_types", interval, "is a full_attention_interval it contradicts"
        )
    return kinds


def qwen3_next(text: Fields, whole: Fields) -> Family:
    """Qwen3-Next and Qwen3.5: Gated DeltaNet layers with full attention between them."""
    hidden = text.count("hidden_size")
    delta, state, heads = blocks.gated_delta(text)
    state = replace(state, ssm_dtype=state_dtype(text, "mamba_ssm_dtype"))
    feed, feed_width = feed_forward(text)
    norms = Inventory(0, 2 * hidden)
    gated = text.flag("attn_output_gate", True)
    full = total([blocks.attention(text, gated=gated, norms=True), feed, norms])
    wide = max(feed_width, attention_width(text, gated=True))
    attention = LayerShape(FULL, full, wide, blocks.kv_shape(text))
    recurrent_width = 2 * (state.conv_dim + heads.heads * heads.value_dim)
    recurrent = LayerShape(
        LINEAR, total([delta, feed, norms]), max(feed_width, recurrent_width), state=state
    )
    layers = tuple(attention if kind == FULL else recurrent for kind in _hybrid_kinds(text))
    drafts = text.count("mtp_num_hidden_layers", "num_nextn_predict_layers", default=0, least=0)
    if drafts > len(layers):
        raise BadModel(f"{text.where}: mtp_num_hidden_layers", drafts, "is more than any model has")
    extra = Inventory(2 * hidden * hidden, 3 * hidden) if drafts else None
    vision = whole.inner("vision_config")
    return Family(
        layers,
        EVERYWHERE if vision is None else EVERYWHERE | {"vision"},
        hidden,
        None if vision is None else blocks.vision_tower(vision),
        tuple([attention] * drafts),
        extra,
        heads,
        vision_width=0 if vision is None else blocks.vision_width(vision),
    )


def qwen3_5(text: Fields, whole: Fields) -> Family:
    """Qwen3.5 to 3.8: as Qwen3-Next, but only the last stage builds lm_head in vLLM."""
    family = qwen3_next(text, whole)
    return replace(family, duplicates=family.duplicates - {"lm_head"})


def gpt_oss(text: Fields, _whole: Fields) -> Family:
    """gpt-oss: sliding and full attention in turn, experts in every layer."""
    hidden, count = text.count("hidden_size"), layer_count(text)
    kinds = text.texts("layer_types", count)
    if kinds is None:
        kinds = [SLIDING if i % 2 == 0 else FULL for i in range(count)]
    number = text.count("num_local_experts", "num_experts")
    inner = text.count("intermediate_size", "moe_intermediate_size")
    chosen = text.count("num_experts_per_tok", "experts_per_token")
    routed = replace(blocks.experts(text), plain=hidden * number + number)
    biases = Inventory(0, number * (2 * inner + hidden))
    query = text.count("num_attention_heads") * blocks.head_dim(text)
    keys = blocks.kv_shape(text).heads * blocks.head_dim(text)
    plain = query + 2 * keys + hidden + text.count("num_attention_heads")
    attention = Inventory(0, hidden * (2 * query + 2 * keys) + plain)  # never quantised here
    parameters = total([routed, biases, attention, Inventory(0, 2 * hidden)])
    width = max(3 * chosen * inner + chosen * hidden, attention_width(text))
    kv, window = blocks.kv_shape(text), text.count("sliding_window", default=128)
    layers = tuple(
        LayerShape(kind, parameters, width, kv, window if kind == SLIDING else None)
        for kind in _attention_kinds(text, kinds)
    )
    return Family(layers, EVERYWHERE, hidden, rotary=2)  # vLLM keeps this table in float32


def _attention_kinds(text: Fields, kinds: list[str]) -> list[str]:
    for kind in kinds:
        if kind not in (FULL, SLIDING):
            raise BadModel(f"{text.where}: layer_types", kind, "is not a layer of this family")
    return kinds


def gemma4(text: Fields, whole: Fields) -> Family:
    """Gemma 4: sliding layers with small heads, full layers with few large ones."""
    if text.count("num_experts", default=0, least=0) or text.count(
        "hidden_size_per_layer_input", default=0, least=0
    ):
        raise BadModel(text.where, "num_experts or hidden_size_per_layer_input", "is not supported")
    hidden, count = text.count("hidden_size"), layer_count(text)
    kinds = text.texts("layer_types", count)
    if kinds is None:
        kinds = [FULL if (i + 1) % 6 == 0 else SLIDING for i in range(count)]
    window = text.count("sliding_window", default=1024)
    heads, width = text.count("num_attention_heads"), text.count("intermediate_size")
    sliding = blocks.kv_shape(text)
    large = text.count("global_head_dim", default=sliding.head_dim)
    full = KvShape(
        text.count(
            "num_global_key_value_heads", "global_num_key_value_heads", default=sliding.heads
        ),
        large,
        large,
    )
    layers = []
    for kind in _attention_kinds(text, kinds):
        kv = full if kind == FULL else sliding
        query, keys = heads * kv.head_dim, kv.heads * kv.head_dim
        # Full layers may share keys and values in the file; vLLM keeps both on the device.
        matrices = hidden * (2 * query + 2 * keys) + 3 * hidden * width
        parameters = Inventory(matrices, 4 * hidden + 2 * kv.head_dim + 1)
        widest = max(3 * width, 2 * query + 2 * keys)
        layers.append(LayerShape(kind, parameters, widest, kv, window if kind == SLIDING else None))
    towers = [name for name in ("vision_config", "audio_config") if whole.has(name)]
    return Family(
        tuple(layers), frozenset({"embed"}), hidden, unsized=towers[0] if towers else None
    )


FAMILIES: dict[str, Callable[[Fields, Fields], Family]] = {
    "LlamaForCausalLM": llama,
    "MistralForCausalLM": llama,
    "Qwen2ForCausalLM": qwen2,
    "Qwen3ForCausalLM": qwen3,
    "Qwen3MoeForCausalLM": qwen3_moe,
    "Qwen3NextForCausalLM": qwen3_next,
    "Qwen3_5ForCausalLM": qwen3_5,
    "Qwen3_5MoeForCausalLM": qwen3_5,
    "Qwen3_5ForConditionalGeneration": qwen3_5,
    "Qwen3_5MoeForConditionalGeneration": qwen3_5,
    "GptOssForCausalLM": gpt_oss,
    "Gemma4ForCausalLM": gemma4,
    "Gemma4ForConditionalGeneration": gemma4,
    "NemotronHForCausalLM": nemotron_h,
    "GraniteMoeHybridForCausalLM": granite_hybrid,
}
