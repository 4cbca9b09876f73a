"""A LoRA adapter for the bundled model: small and random, enough to change its text."""

from __future__ import annotations

import json
from pathlib import Path

_LAYERS, _HIDDEN, _INTERMEDIATE, _RANK = 8, 256, 640, 8
_PREFIX = "base_model.model.model.language_model.layers"


def write(folder: Path) -> Path:
    """Write the adapter into ``folder``, in the form of peft; ``folder``."""
    import torch
    from safetensors.torch import save_file

    torch.manual_seed(3)
    tensors = {}
    for layer in range(_LAYERS):
        name = f"{_PREFIX}.{layer}.mlp.down_proj"
        tensors[f"{name}.lora_A.weight"] = torch.randn(_RANK, _INTERMEDIATE) * 0.05
        tensors[f"{name}.lora_B.weight"] = torch.randn(_HIDDEN, _RANK) * 0.05
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": _RANK, "lora_alpha": 16, "target_modules": ["down_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder
