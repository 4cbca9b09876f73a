"""Architectures arcpp understands: what each layer is and how large, from ``config.json``.

An architecture that is not in FAMILIES is refused by name (UnknownModel); a plugin can teach
it through the hook ``arcpp_model_profile``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from arcpp.errors import BadModel

from . import blocks
from .fields import Fields
from .inventory import Inventory, total
from .model import FULL, LINEAR, MAMBA, NONE, SLIDING, GatedDelta, KvShape, RecurrentState


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
    """A model before its bytes are known. duplicates: see ModelProfile. unsized: a part whose
    size only the weights' headers tell, or None."""

    layers: tuple[LayerShape, ...]
    duplicates: frozenset[str]
    final_norm: int
    vision: Inventory | None = None
    mtp: tuple[LayerShape, ...] = ()
    mtp_extra: Inventory | None = None
    delta: GatedDelta | None = None
    mamba_chunk: int | None = None
    vision_width: int = 0
    unsized: str | None = None


_EVERYWHERE = frozenset({"embed", "lm_head"})


def _layer_count(text: Fields) -> int:
    count = text.count("num_hidden_layers")
    if count > 1024:
        raise BadModel(f"{text.where}: num_hidden_layers", count, "is more than any model has")
    return count


def _attention_width(text: Fields, gated: bool = False) -> int:
    size = blocks.head_dim(text)
    query = text.count("num_attention_heads") * size
    return query * (3 if gated else 2) + 2 * blocks.kv_shape(text).heads * size


def _feed_forward(text: Fields) -> tuple[Inventory, int]:
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


def _dense(text: Fields, *, norms: bool, qkv_bias: bool) -> tuple[LayerShape, ...]:
    hidden = text.count("hidden_size")
    feed, width = _feed_forward(text)
    attention = blocks.attention(text, norms=norms, qkv_bias=qkv_bias)
    parameters = total([attention, feed, Inventory(0, 2 * hidden)])
    widest = max(width, _attention_width(text))
    layer = LayerShape(FULL, parameters, widest, blocks.kv_shape(text))
    return tuple([layer] * _layer_count(text))


def llama(text: Fields, _whole: Fields) -> Family:
    """Llama and Mistral."""
    layers = _dense(text, norms=False, qkv_bias=False)
    window = text.raw("sliding_window")
    if isinstance(window, int) and not isinstance(window, bool) and window > 0:
        layers = tuple(replace(layer, kind=SLIDING, window=window) for layer in layers)
    return Family(layers, frozenset(), text.count("hidden_size"))


def qwen2(text: Fields, _whole: Fields) -> Family:
    """Qwen2 and Qwen2.5."""
    layers = _dense(text, norms=False, qkv_bias=True)
    return Family(layers, frozenset(), text.count("hidden_size"))


def qwen3(text: Fields, _whole: Fields) -> Family:
    """Qwen3, dense."""
    layers = _dense(text, norms=True, qkv_bias=False)
    return Family(layers, frozenset(), text.count("hidden_size"))


def qwen3_moe(text: Fields, _whole: Fields) -> Family:
    """Qwen3, mixture of experts."""
    layers = _dense(text, norms=True, qkv_bias=False)
    return Family(layers, _EVERYWHERE, text.count("hidden_size"))


def _hybrid_kinds(text: Fields) -> list[str]:
    count = _layer_count(text)
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
    state = replace(state, ssm_dtype=text.text("mamba_ssm_dtype"))
    feed, feed_width = _feed_forward(text)
    norms = Inventory(0, 2 * hidden)
    gated = text.flag("attn_output_gate", True)
    full = total([blocks.attention(text, gated=gated, norms=True), feed, norms])
    wide = max(feed_width, _attention_width(text, gated=True))
    attention = LayerShape(FULL, full, wide, blocks.kv_shape(text))
    recurrent_width = 2 * (state.conv_dim + heads.heads * heads.value_dim)
    recurrent = LayerShape(
        LINEAR, total([delta, feed, norms]), max(feed_width, recurrent_width), state=state
    )
    layers = tuple(attention if kind == FULL else recurrent for kind in _hybrid_kinds(text))
    drafts = text.count("mtp_num_hidden_layers", "num_nextn_predict_layers", default=0, least=0)
    extra = Inventory(2 * hidden * hidden, 3 * hidden) if drafts else None
    vision = whole.inner("vision_config")
    return Family(
        layers,
        _EVERYWHERE if vision is None else _EVERYWHERE | {"vision"},
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
    hidden, count = text.count("hidden_size"), _layer_count(text)
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
    width = max(3 * chosen * inner + chosen * hidden, _attention_width(text))
    kv, window = blocks.kv_shape(text), text.count("sliding_window", default=128)
    layers = tuple(
        LayerShape(kind, parameters, width, kv, window if kind == SLIDING else None)
        for kind in _attention_kinds(text, kinds)
    )
    return Family(layers, _EVERYWHERE, hidden)


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
    hidden, count = text.count("hidden_size"), _layer_count(text)
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


def nemotron_h(text: Fields, _whole: Fields) -> Family:
    """Nemotron-H: one block per layer, Mamba-2, attention, MLP or experts."""
    hidden, pattern = text.count("hidden_size"), text.text("hybrid_override_pattern")
    if pattern is None or len(pattern) != _layer_count(text) or len(pattern) > 1024:
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
    state = replace(state, ssm_dtype=text.text("mamba_ssm_cache_dtype") or "float32")
    kinds = {
        "M": lambda: LayerShape(MAMBA, total([mixer, norm]), 3 * state.conv_dim, state=state),
        "*": lambda: LayerShape(
            FULL, total([blocks.attention(text), norm]), _attention_width(text),
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
    return Family(layers, _EVERYWHERE, hidden, mamba_chunk=text.count("chunk_size", default=2048))


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
    hidden, count = text.count("hidden_size"), _layer_count(text)
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
        FULL, total([blocks.attention(text), *feed]), max(width, _attention_width(text)),
        blocks.kv_shape(text),
    )  # fmt: skip
    for kind in kinds:
        if kind not in ("mamba", "attention", FULL):
            raise BadModel(f"{text.where}: layer_types", kind, "is not mamba or attention")
    layers = tuple(mamba if kind == "mamba" else attention for kind in kinds)
    chunk = text.count("mamba_chunk_size", "chunk_size", default=2048)
    return Family(layers, _EVERYWHERE, hidden, mamba_chunk=chunk)


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
