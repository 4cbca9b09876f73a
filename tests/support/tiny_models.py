"""Small random models of real architectures, written as Hugging Face folders.

They share the bundled model's tokenizer. Weights are wider than a real initialisation, so that
the two best logits are rarely a rounding error apart.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from .vllm_server import HYBRID_MODEL

_SHARED = {
    "vocab_size": 4096,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 4096,
    "initializer_range": 0.15,
    "bos_token_id": None,
    "eos_token_id": 0,
    "pad_token_id": 0,
}
_GATED_DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 4,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
    "decoder_sparse_step": 1,
}


def write_qwen3(folder: Path, *, tied: bool = False) -> Path:
    """Dense Qwen3, 8 layers, float32."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    return _write(folder, Qwen3ForCausalLM, Qwen3Config(**_SHARED, tie_word_embeddings=tied))


def write_qwen3_next(folder: Path) -> Path:
    """Qwen3-Next: three Gated DeltaNet layers, one attention layer, twice; 4 experts."""
    from transformers import Qwen3NextConfig, Qwen3NextForCausalLM

    config = Qwen3NextConfig(**_SHARED, **_GATED_DELTA, tie_word_embeddings=False)
    return _write(folder, Qwen3NextForCausalLM, config)


def _write(folder: Path, model_class: type, config: object) -> Path:
    import torch

    torch.manual_seed(7)
    model_class(config).to(torch.float32).save_pretrained(folder)  # type: ignore[attr-defined]
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(HYBRID_MODEL / name, folder / name)
    return folder
