"""What a plan needs to know about a model: sizes per layer and role. Nothing is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod

from .dtypes import SIZES

FULL = "full_attention"
SLIDING = "sliding_attention"
LINEAR = "linear_attention"
MAMBA = "mamba"
NONE = "none"  # a layer without KV or state, such as an MoE-only layer

#: Constants of an IR that every stage keeps (RoPE tables, masks).
SHARED = "shared"
#: Roles outside the layers, in the order tables show them.
ROLES = ("embed", "vision", "final_norm", "lm_head", "mtp", SHARED)


@dataclass(frozen=True)
class KvShape:
    """Keys and values one token leaves in one attention layer."""

    heads: int
    head_dim: int
    head_dim_v: int

    @property
    def elements(self) -> int:
        """Elements per token, keys and values together."""
        return self.heads * (self.head_dim + self.head_dim_v)


@dataclass(frozen=True)
class RecurrentState:
    """State one sequence keeps in one linear-attention or Mamba layer.

    conv_rows, conv_dim: the convolution window; speculation adds one row per draft token.
    ssm: shape of the matrix state. ssm_dtype: its dtype, or None where it follows the
    convolution's (which is the model's dtype in vLLM).
    """

    conv_rows: int
    conv_dim: int
    ssm: tuple[int, ...]
    ssm_dtype: str | None

    def shapes(self, spec_tokens: int = 0) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shapes of (convolution, matrix) state, as vLLM allocates them."""
        return (self.conv_rows + spec_tokens, self.conv_dim), self.ssm

    def bytes(self, dtype: str, spec_tokens: int = 0, ssm_dtype: str | None = None) -> int:
        """Bytes per sequence. dtype: the model's; ssm_dtype overrides the model's own choice."""
        conv, ssm = self.shapes(spec_tokens)
        return prod(conv) * SIZES[dtype] + prod(ssm) * SIZES[ssm_dtype or self.ssm_dtype or dtype]


@dataclass(frozen=True)
class Layer:
    """One decoder layer.

    weights_bytes: as kept on the device. active_bytes: the part one token reads (fewer with
    experts). kv: for attention kinds. window: tokens a sliding layer sees. state: for
    recurrent kinds.
    """

    kind: str
    weights_bytes: int
    active_bytes: int
    kv: KvShape | None = None
    window: int | None = None
    state: RecurrentState | None = None


@dataclass(frozen=True)
class GatedDelta:
    """Heads of a Gated DeltaNet layer, which size its prefill workspace."""

    heads: int
    key_dim: int
    value_dim: int


@dataclass(frozen=True)
class ModelProfile:
    """Sizes of one model.

    roles: bytes of what lies outside the layers, keyed by ROLES; ``lm_head`` is absent when
    tied. mtp_layers: the draft layers, used only with speculation (their weights are the role
    ``mtp``). widths: activation elements per token at the widest point of a layer.
    duplicates: roles that stock vLLM builds on every stage for this architecture.
    vision_width: activation elements per patch at the vision tower's widest point; 0 without one.
    rope_elements: elements of the tables of rotary positions that a stage with attention keeps.
    mamba_chunk: chunk size of Mamba-2 layers, which older versions align blocks to.
    source: where the weights' sizes come from (``safetensors``, ``config``, ``openvino``).
    """

    architecture: str
    layers: tuple[Layer, ...]
    roles: Mapping[str, int]
    tied: bool
    dtype: str
    hidden_size: int
    widths: int
    vocab_size: int
    max_model_len: int
    source: str
    mtp_layers: tuple[Layer, ...] = ()
    duplicates: frozenset[str] = frozenset()
    delta: GatedDelta | None = None
    mamba_chunk: int | None = None
    vision_width: int = 0
    rope_elements: int = 0
    quantization: str | None = None
    notes: tuple[str, ...] = field(default=())

    @property
    def hybrid(self) -> bool:
        """Whether any layer keeps recurrent state."""
        return any(layer.state is not None for layer in self.layers)

    @property
    def weights_bytes(self) -> int:
        """Everything but the draft layers, each counted once."""
        outside = sum(size for role, size in self.roles.items() if role != "mtp")
        return outside + sum(layer.weights_bytes for layer in self.layers)

    @property
    def period(self) -> int:
        """Length of the repeating pattern of layer kinds; cuts on its multiples waste nothing.

        1 for models of one kind; the number of layers when no shorter pattern repeats.
        """
        kinds = [layer.kind for layer in self.layers]
        for length in range(1, len(kinds)):
            if all(kinds[i] == kinds[i - length] for i in range(length, len(kinds))):
                return length
        return max(1, len(kinds))
