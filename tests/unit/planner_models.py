"""Configs and devices the planner's tests share. Sizes from public config.json files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from arcpp.devices import Device, DeviceMemory
from arcpp.units import MiB

ROOT = Path(__file__).parents[2]
BUNDLED = ROOT / "tests" / "models" / "kjv-hybrid-8l" / "hf"

B70 = Device("B70", DeviceMemory(31023 * MiB, 31023 * MiB), 608.0)
B580 = Device("B580", DeviceMemory(11605 * MiB, 11605 * MiB), 456.0)

QWEN35_27B: dict[str, Any] = {
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "text_config": {
        "dtype": "bfloat16",
        "num_hidden_layers": 64,
        "hidden_size": 5120,
        "full_attention_interval": 4,
        "num_attention_heads": 24,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "intermediate_size": 17408,
        "vocab_size": 248320,
        "tie_word_embeddings": False,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 48,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "mamba_ssm_dtype": "float32",
        "mtp_num_hidden_layers": 1,
        "max_position_embeddings": 262144,
    },
    "vision_config": {
        "depth": 27,
        "hidden_size": 1152,
        "intermediate_size": 4304,
        "num_heads": 16,
        "patch_size": 16,
        "spatial_merge_size": 2,
        "out_hidden_size": 5120,
    },
}

QWEN3_30B: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "torch_dtype": "bfloat16",
    "num_hidden_layers": 48,
    "hidden_size": 2048,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
    "intermediate_size": 6144,
    "vocab_size": 151936,
    "tie_word_embeddings": False,
    "max_position_embeddings": 40960,
}

LLAMA_8B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "torch_dtype": "bfloat16",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
    "max_position_embeddings": 131072,
}


GPT_OSS: dict[str, Any] = {
    "architectures": ["GptOssForCausalLM"], "num_hidden_layers": 24, "hidden_size": 2880,
    "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 201088,
    "num_local_experts": 32, "num_experts_per_tok": 4, "intermediate_size": 2880,
    "sliding_window": 128, "tie_word_embeddings": False, "max_position_embeddings": 131072,
    "quantization_config": {"quant_method": "mxfp4"},
}  # fmt: skip
GEMMA4: dict[str, Any] = {
    "architectures": ["Gemma4ForCausalLM"], "num_hidden_layers": 60, "hidden_size": 5376,
    "num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 256,
    "global_num_key_value_heads": 4, "global_head_dim": 512, "intermediate_size": 21504,
    "vocab_size": 262144, "sliding_window": 1024, "max_position_embeddings": 262144,
}  # fmt: skip
NEMOTRON: dict[str, Any] = {
    "architectures": ["NemotronHForCausalLM"], "num_hidden_layers": 52, "hidden_size": 2688,
    "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
    "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 128,
    "n_routed_experts": 128, "num_experts_per_tok": 6, "moe_intermediate_size": 1856,
    "moe_shared_expert_intermediate_size": 3712, "n_shared_experts": 1, "vocab_size": 131072,
    "mamba_num_heads": 64, "mamba_head_dim": 64, "ssm_state_size": 128, "n_groups": 8,
    "conv_kernel": 4, "chunk_size": 128, "intermediate_size": 1856,
    "tie_word_embeddings": False, "max_position_embeddings": 262144,
}  # fmt: skip
GRANITE: dict[str, Any] = {
    "architectures": ["GraniteMoeHybridForCausalLM"], "num_hidden_layers": 40,
    "hidden_size": 4096, "layer_types": (["mamba"] * 5 + ["attention"] + ["mamba"] * 4) * 4,
    "num_attention_heads": 32, "num_key_value_heads": 8, "num_local_experts": 72,
    "num_experts_per_tok": 10, "intermediate_size": 768, "shared_intermediate_size": 1536,
    "mamba_n_heads": 128, "mamba_d_head": 64, "mamba_n_groups": 1, "mamba_d_state": 128,
    "mamba_d_conv": 4, "mamba_expand": 2, "mamba_chunk_size": 256, "vocab_size": 100352,
    "tie_word_embeddings": True, "max_position_embeddings": 131072,
}  # fmt: skip
QWEN35_35B: dict[str, Any] = {
    "architectures": ["Qwen3_5MoeForConditionalGeneration"],
    "text_config": {
        "num_hidden_layers": 40, "hidden_size": 2048, "full_attention_interval": 4,
        "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256, "num_experts": 256,
        "num_experts_per_tok": 8, "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512, "vocab_size": 248320,
        "tie_word_embeddings": False, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
        "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
        "mamba_ssm_dtype": "float32", "mtp_num_hidden_layers": 1,
        "max_position_embeddings": 262144,
    },
}  # fmt: skip
QWEN35_122B: dict[str, Any] = {
    "architectures": ["Qwen3_5MoeForConditionalGeneration"],
    "text_config": {
        **QWEN35_35B["text_config"], "num_hidden_layers": 48, "hidden_size": 3072,
        "num_attention_heads": 32, "moe_intermediate_size": 1024,
        "shared_expert_intermediate_size": 1024, "linear_num_value_heads": 64,
    },
}  # fmt: skip
QWEN3_NEXT: dict[str, Any] = {
    **QWEN35_35B["text_config"], "architectures": ["Qwen3NextForCausalLM"],
    "num_hidden_layers": 48, "vocab_size": 151936, "num_experts": 512, "num_experts_per_tok": 10,
}  # fmt: skip
LLAMA_70B: dict[str, Any] = {
    **LLAMA_8B, "num_hidden_layers": 80, "hidden_size": 8192, "num_attention_heads": 64,
    "intermediate_size": 28672,
}  # fmt: skip


def write_config(folder: Path, config: dict[str, Any]) -> Path:
    """``config`` as a bare config.json in ``folder``."""
    path = folder / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    return path
