"""Memory a step needs beside weights and cache. Estimates, and said to be so in the plan.

Activations: the widest layer's inputs and outputs plus hidden state and residual, for every
token of a step. Logits: float32 scores and one copy for every running request, on the last
stage. Gated DeltaNet: chunk states, exact (vLLM's profiling run never sees them on XPU).
"""

from __future__ import annotations

from arcpp.profile.dtypes import SIZES
from arcpp.profile.model import GatedDelta, ModelProfile

_CHUNK = 64
_IMAGE_PATCHES = 65_536  # the largest image of Qwen3-VL's processor: 16,384 tokens of 2x2 patches


def delta_chunk_states(delta: GatedDelta, tokens: int, tensor_parallel: int = 1) -> int:
    """Bytes of the per-chunk states of one Gated DeltaNet prefill, 16-bit."""
    chunks = -(-tokens // _CHUNK)
    return chunks * (delta.heads // tensor_parallel) * delta.key_dim * delta.value_dim * 2


def delta_workspace(delta: GatedDelta, tokens: int) -> int:
    """The chunk states and the two buffers of half their size that live beside them."""
    return 2 * delta_chunk_states(delta, tokens)


def activation_bytes(profile: ModelProfile, tokens: int) -> int:
    """Activations of one layer for a step of ``tokens``."""
    return tokens * (profile.widths + 3 * profile.hidden_size) * SIZES[profile.dtype]


def processor_activation_bytes(profile: ModelProfile, tokens: int) -> int:
    """Activations of a stage that OpenVINO runs on a processor: float32, and more than one layer's.

    Measured with OpenVINO 2026.4: 2.25 to 2.5 times one layer's, for 512 and 2048 tokens.
    """
    return tokens * (profile.widths + 3 * profile.hidden_size) * SIZES["float32"] * 9 // 4


def rope_bytes(profile: ModelProfile) -> int:
    """The table of rotary positions that every stage with attention builds, exact."""
    return profile.rope_elements * SIZES[profile.dtype]


def vision_bytes(profile: ModelProfile) -> int:
    """Activations of the vision tower for the largest image, which vLLM runs at start."""
    return _IMAGE_PATCHES * profile.vision_width * SIZES[profile.dtype]


def logits_bytes(profile: ModelProfile, sequences: int) -> int:
    """Scores of the last stage for ``sequences`` running requests."""
    return sequences * profile.vocab_size * 8
