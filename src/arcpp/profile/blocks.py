"""Parameter counts of the building blocks that the known families are made of.

Shapes follow the public model code of each family; the test suite checks them against the
safetensors headers of real checkpoints where one is at hand.
"""

from __future__ import annotations

from fractions import Fraction

from arcpp.errors import BadModel

from .fields import Fields
from .inventory import Inventory
from .model import GatedDelta, KvShape, RecurrentState


def head_dim(text: Fields) -> int:
    """``head_dim``, or hidden size over heads where the config leaves it out."""
    heads, hidden = text.count("num_attention_heads"), text.count("hidden_size")
    if not text.has("head_dim") and hidden % heads:
        raise BadModel(f"{text.where}: num_attention_heads", heads, f"does not divide {hidden}")
    return text.count("head_dim", default=hidden // heads)


def kv_shape(text: Fields) -> KvShape:
    """KV of an ordinary attention layer."""
    queries = text.count("num_attention_heads")
    heads = text.count("num_key_value_heads", default=queries)
    if queries % heads:
        right = f"does not divide {queries} attention heads"
        raise BadModel(f"{text.where}: num_key_value_heads", heads, right)
    return KvShape(heads, head_dim(text), head_dim(text))


def attention(
    text: Fields, *, gated: bool = False, norms: bool = False, qkv_bias: bool = False
) -> Inventory:
    """Grouped-query attention; gated: queries are doubled; norms: q and k norms."""
    hidden, size = text.count("hidden_size"), head_dim(text)
    query = text.count("num_attention_heads") * size
    keys = kv_shape(text).heads * size
    matrices = hidden * (query * (2 if gated else 1) + 2 * keys) + query * hidden
    plain = 2 * size if norms else 0
    if text.flag("attention_bias", False):
        plain += query * (2 if gated else 1) + 2 * keys + hidden
    elif qkv_bias:
        plain += query + 2 * keys
    return Inventory(matrices, plain)


def mlp(hidden: int, width: int) -> Inventory:
    """Gate, up and down projection."""
    return Inventory(3 * hidden * width)


def experts(text: Fields, matrices: int = 3) -> Inventory:
    """Routed experts of ``matrices`` projections each, and the router (kept plain)."""
    hidden = text.count("hidden_size")
    number = text.count("num_experts", "num_local_experts", "n_routed_experts")
    width = text.count("moe_intermediate_size", "intermediate_size")
    chosen = text.count("num_experts_per_tok", "num_experts_per_token")
    share = Fraction(min(chosen, number), number)
    return Inventory(0, hidden * number, number * matrices * hidden * width, share)


def gated_delta(text: Fields) -> tuple[Inventory, RecurrentState, GatedDelta]:
    """A Gated DeltaNet block, its state and its heads (Qwen3-Next, Qwen3.5)."""
    key_heads = text.count("linear_num_key_heads")
    heads = text.count("linear_num_value_heads")
    key_dim, value_dim = text.count("linear_key_head_dim"), text.count("linear_value_head_dim")
    kernel, hidden = text.count("linear_conv_kernel_dim", least=2), text.count("hidden_size")
    keys, values = key_heads * key_dim, heads * value_dim
    channels = 2 * keys + values
    matrices = hidden * (channels + values) + values * hidden
    plain = hidden * 2 * heads + channels * kernel + 2 * heads + value_dim
    state = RecurrentState(kernel - 1, channels, (heads, value_dim, key_dim), None)
    return Inventory(matrices, plain), state, GatedDelta(heads, key_dim, value_dim)


def mamba2(
    hidden: int, *, heads: int, size: int, groups: int, states: int, kernel: int
) -> tuple[Inventory, RecurrentState]:
    """A Mamba-2 mixer and its state (Nemotron-H, Granite 4 hybrid)."""
    inner = heads * size
    channels = inner + 2 * groups * states
    matrices = hidden * (inner + channels + heads) + inner * hidden
    plain = channels * (kernel + 1) + 3 * heads + inner
    return Inventory(matrices, plain), RecurrentState(
        kernel - 1, channels, (heads, size, states), None
    )


def vision_width(vision: Fields) -> int:
    """Elements per patch that a vision block holds at once: hidden, residual and the MLP."""
    return 2 * vision.count("hidden_size") + 2 * vision.count("intermediate_size")


def vision_tower(vision: Fields) -> Inventory:
    """The vision tower and merger of Qwen3-VL, shared by Qwen3.5. Never quantised."""
    width, inner = vision.count("hidden_size"), vision.count("intermediate_size")
    patch = vision.count("patch_size") ** 2 * vision.count("temporal_patch_size", default=2)
    merged = width * vision.count("spatial_merge_size", default=2) ** 2
    out = vision.count("out_hidden_size")
    embed = vision.count("in_channels", default=3) * patch * width + width
    places = vision.count("num_position_embeddings", default=2304) * width
    block = 4 * width * width + 4 * width + 2 * width * inner + inner + width + 4 * width
    merger = 2 * width + merged * merged + merged + merged * out + out
    deepstack = vision.raw("deepstack_visual_indexes")
    extra = len(deepstack) if isinstance(deepstack, list) else 0
    mergers = merger + extra * (2 * merged + merged * merged + merged + merged * out + out)
    return Inventory(0, embed + places + vision.count("depth") * block + mergers)
