"""Which layer or role a checkpoint tensor belongs to, by its name."""

from __future__ import annotations

import re

_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d{1,6})\.")
_MTP = re.compile(r"(?:^|\.)(?:mtp|mtp_block|nextn)\.")
_VISION = re.compile(
    r"(?:^|\.)(?:visual|vision_tower|vision_model|vision_embed_tokens|embed_vision|audio_tower"
    r"|embed_audio|multi_modal_projector|mm_projector)\."
)
_EMBED = re.compile(r"(?:^|\.)(?:embed_tokens|embedding|embeddings|wte|word_embeddings)\.")
_HEAD = re.compile(r"(?:^|\.)(?:lm_head|output_embeddings)\.")
_NORM = re.compile(r"(?:^|\.)(?:norm|norm_f|final_layernorm|ln_f)\.")
_BUFFERS = re.compile(r"rotary_emb\.inv_freq$|(?:^|\.)(?:k|v)_scale$")

#: Names of routed experts' tensors, of which a token reads a few (Granite stacks them in two).
ROUTED = re.compile(r"\.experts\.|\.block_sparse_moe\.(?:input|output)_linear\.")
#: Role of tensors that a loader computes again and does not keep.
IGNORED = "ignored"


def owner(name: str) -> int | str | None:
    """Layer index, role, IGNORED, or None when the name fits nothing known.

    An index at or beyond the model's own layers is a draft layer's, where it has such.
    """
    if _BUFFERS.search(name):
        return IGNORED
    if _MTP.search(name):
        return "mtp"
    if _VISION.search(name):
        return "vision"
    match = _LAYER.search(name)
    if match is not None:
        return int(match[1])
    for role, pattern in (("embed", _EMBED), ("lm_head", _HEAD), ("final_norm", _NORM)):
        if pattern.search(name):
            return role
    return None
