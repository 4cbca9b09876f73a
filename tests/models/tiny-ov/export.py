#!/usr/bin/env python3
"""Make a random model of a family and export it: export.py FAMILY LAYERS OUT f16|int8|int4

qwen3 with transformers 5.2.0, qwen3_next with 4.57.6; optimum-intel 2.2.0, torch 2.13.0,
nncf 3.4.0, openvino 2026.4.1.
"""

import os
import sys
import tempfile

import nncf
import openvino as ov
import torch
import transformers
from optimum.intel import OVModelForCausalLM

family, layers, out, weights = sys.argv[1:]
sizes = {
    "vocab_size": 128, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": int(layers),
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16,
    "max_position_embeddings": 4096,
}  # fmt: skip
if family == "qwen3_next":
    sizes |= {
        "linear_num_value_heads": 2, "linear_num_key_heads": 1, "linear_key_head_dim": 16,
        "linear_value_head_dim": 16, "linear_conv_kernel_dim": 4, "num_experts": 4,
        "num_experts_per_tok": 2, "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 32, "decoder_sparse_step": 1,
    }  # fmt: skip
config, model = {
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM"),
    "qwen3_next": ("Qwen3NextConfig", "Qwen3NextForCausalLM"),
}[family]
torch.manual_seed(0)
made = getattr(transformers, model)(getattr(transformers, config)(**sizes)).eval()
with tempfile.TemporaryDirectory() as tmp:
    made.save_pretrained(tmp)
    exported = OVModelForCausalLM.from_pretrained(
        tmp, export=True, compile=False, load_in_8bit=False
    )
    exported.save_pretrained(out)
xml = f"{out}/openvino_model.xml"
ir = ov.Core().read_model(xml)
mode = nncf.CompressWeightsMode
if weights == "int4":
    ir = nncf.compress_weights(ir, mode=mode.INT4_ASYM, ratio=1.0, group_size=32, all_layers=True)
elif weights == "int8":
    ir = nncf.compress_weights(ir, mode=mode.INT8_ASYM)
ov.save_model(ir, f"{out}/new.xml", compress_to_fp16=True)
for end in ("xml", "bin"):
    os.replace(f"{out}/new.{end}", f"{out}/openvino_model.{end}")
