"""Tables of rotary positions as planned against those that vLLM makes, in process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from arcpp.profile import load_profile

pytestmark = pytest.mark.vllm

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "torch_dtype": "bfloat16", "num_hidden_layers": 2,
    "hidden_size": 256, "num_attention_heads": 4, "head_dim": 64, "intermediate_size": 64,
    "vocab_size": 16, "max_position_embeddings": 1024,
}  # fmt: skip
ROPES: list[dict[str, Any] | None] = [
    None,
    {"rope_type": "default", "partial_rotary_factor": 0.25},
    {"rope_type": "linear", "factor": 2.0},
    {"rope_type": "dynamic", "factor": 2.0},
    {"rope_type": "proportional", "partial_rotary_factor": 0.25},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512},
    {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 256,
    },
]  # fmt: skip


@pytest.mark.parametrize("rope", ROPES, ids=lambda rope: rope["rope_type"] if rope else "none")
def test_table_is_as_large_as_vllms(rope: dict[str, Any] | None, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="needs vLLM")
    config = pytest.importorskip("vllm.config", reason="needs vLLM")
    from vllm.model_executor.layers.rotary_embedding import get_rope

    with config.set_current_vllm_config(config.VllmConfig()):
        made = get_rope(64, 1024, rope_parameters=rope, dtype=torch.bfloat16)
    right = sum(buffer.numel() * buffer.element_size() for buffer in made.buffers())
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**CONFIG, "rope_parameters": rope}), encoding="utf-8")
    assert load_profile(path).rope_elements * 2 == right
