"""Profiles: exact from headers, from configs and from IRs, and refusals by name."""

from __future__ import annotations

import errno
import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from arcpp.cli import main
from arcpp.errors import BadInput, BadModel, UnknownModel
from arcpp.profile import load_profile
from arcpp.profile.build import from_tensors
from arcpp.profile.readers import TensorInfo, read_checkpoint
from arcpp.profile.roles import owner
from arcpp.units import GiB

from .planner_models import (
    BUNDLED,
    GEMMA4,
    GPT_OSS,
    GRANITE,
    LLAMA_8B,
    LLAMA_70B,
    NEMOTRON,
    QWEN3_30B,
    QWEN35_27B,
    QWEN35_35B,
    write_config,
)


def test_config_and_headers_agree_to_the_byte() -> None:
    stored, computed = load_profile(BUNDLED), load_profile(BUNDLED / "config.json")
    assert dict(stored.roles) == dict(computed.roles)
    assert [layer.weights_bytes for layer in stored.layers] == [
        layer.weights_bytes for layer in computed.layers
    ]
    assert stored.mtp_layers
    assert (stored.source, computed.source) == ("safetensors", "config")
    size = (BUNDLED / "model.safetensors").stat().st_size
    with (BUNDLED / "model.safetensors").open("rb") as file:
        header = struct.unpack("<Q", file.read(8))[0]
    assert stored.weights_bytes + stored.roles["mtp"] == size - 8 - header


def test_bundled_model_is_what_its_readme_says() -> None:
    profile = load_profile(BUNDLED)
    kinds = [layer.kind for layer in profile.layers]
    assert kinds == (["linear_attention"] * 3 + ["full_attention"]) * 2
    assert profile.period == 4
    assert profile.hybrid
    assert profile.duplicates == {"embed", "vision"}
    assert profile.max_model_len == 32768
    state = profile.layers[0].state
    assert state is not None
    assert state.shapes() == ((3, 640), (6, 64, 64))
    assert state.shapes(spec_tokens=2)[0] == (5, 640)
    assert state.bytes("bfloat16") == 3 * 640 * 2 + 6 * 64 * 64 * 4


@pytest.mark.parametrize(
    ("config", "billions", "active", "layers"),
    [
        (QWEN35_27B, 27.0, 27.0, 64),
        (QWEN35_35B, 35.0, 3.0, 40),
        (QWEN3_30B, 30.5, 3.3, 48),
        (LLAMA_70B, 70.6, 70.6, 80),
        (GPT_OSS, 20.9, 3.6, 24),
        (GEMMA4, 30.7, 30.7, 60),
        (NEMOTRON, 31.6, 3.6, 52),
        (GRANITE, 32.2, 9.0, 40),
    ],
    ids=lambda value: value["architectures"][0] if isinstance(value, dict) else None,
)
def test_families_have_the_parameters_on_their_label(
    config: dict[str, Any], billions: float, active: float, layers: int, tmp_path: Path
) -> None:
    """Names say 27B, 35B-A3B and so on; counted without the draft layers."""
    profile = load_profile(write_config(tmp_path, config), weights_dtype="float16")
    assert len(profile.layers) == layers
    counted = profile.weights_bytes / 2 / 1e9
    assert counted == pytest.approx(billions, rel=0.03)
    reads = sum(layer.active_bytes for layer in profile.layers) / 2 / 1e9
    embeddings = profile.roles["embed"] * (1 if profile.tied else 2) / 2 / 1e9
    assert reads + embeddings == pytest.approx(active, rel=0.25)


def test_sizes_of_quantised_formats(tmp_path: Path) -> None:
    config = write_config(tmp_path, QWEN35_27B)
    size = {
        name: load_profile(config, weights_dtype=name).weights_bytes / GiB
        for name in ("float16", "fp8", "int8", "int4")
    }
    # Qwen3.6-27B-FP8 is about 28.8 GiB on disk with the draft layer, AWQ-like int4 about 17.
    assert size["float16"] > 50
    assert 27 < size["fp8"] < 29
    assert size["int8"] == pytest.approx(size["fp8"], rel=0.01)
    assert 15 < size["int4"] < 18


def test_gpt_oss_alternates_and_gemma4_has_two_head_sizes(tmp_path: Path) -> None:
    oss = load_profile(write_config(tmp_path, GPT_OSS))
    assert [layer.window for layer in oss.layers[:4]] == [128, None, 128, None]
    assert oss.quantization == "mxfp4"
    assert 12 < oss.weights_bytes / GiB < 14
    gemma = load_profile(write_config(tmp_path, GEMMA4))
    shapes = {(layer.kv.heads, layer.kv.head_dim) for layer in gemma.layers if layer.kv}
    assert shapes == {(16, 256), (4, 512)}
    assert gemma.tied
    assert sum(layer.window is not None for layer in gemma.layers) == 50


def test_mamba_states_follow_the_family(tmp_path: Path) -> None:
    nemotron = load_profile(write_config(tmp_path, NEMOTRON))
    kinds = [layer.kind for layer in nemotron.layers]
    assert (kinds.count("mamba"), kinds.count("none"), kinds.count("full_attention")) == (
        23,
        23,
        6,
    )
    state = nemotron.layers[0].state
    assert state is not None
    assert state.ssm_dtype == "float32"
    assert state.shapes() == ((3, 64 * 64 + 2 * 8 * 128), (64, 64, 128))
    granite = load_profile(write_config(tmp_path, GRANITE)).layers[0].state
    assert granite is not None
    assert granite.ssm_dtype is None  # vLLM keeps it in the model's dtype


def test_dtype_of_activations(tmp_path: Path) -> None:
    assert load_profile(BUNDLED).dtype == "bfloat16"
    assert load_profile(BUNDLED, dtype="half").dtype == "float16"
    wide = load_profile(BUNDLED, dtype="float32")
    assert wide.weights_bytes == 2 * load_profile(BUNDLED).weights_bytes
    config = {**LLAMA_8B, "torch_dtype": "float32"}
    assert load_profile(write_config(tmp_path, config)).dtype == "bfloat16"
    with pytest.raises(BadInput):
        load_profile(BUNDLED, dtype="int8")


@pytest.mark.parametrize(
    ("extra", "length"),
    [
        ({}, 131072),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, 262144),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, 131072),
        ({"rope_scaling": {"type": "llama3", "factor": 8.0}}, 131072),
        ({"seq_length": 4096}, 4096),
    ],
)
def test_longest_length_is_derived_as_vllm_does(
    extra: dict[str, Any], length: int, tmp_path: Path
) -> None:
    profile = load_profile(write_config(tmp_path, {**LLAMA_8B, **extra}))
    assert profile.max_model_len == length


@pytest.mark.parametrize(
    ("quantization", "stored"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8"),
        ({"quant_method": "gptq", "bits": 4}, "int4"),
        ({"quant_method": "gptq", "bits": 8}, "int8"),
        ({"quant_method": "awq", "bits": 4}, "int4"),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float"}}},
            },
            "fp8",
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int"}}},
            },
            "int4",
        ),
    ],
)
def test_quantization_config_names_the_format(
    quantization: dict[str, Any], stored: str, tmp_path: Path
) -> None:
    config = {**LLAMA_8B, "quantization_config": quantization}
    assert load_profile(write_config(tmp_path, config)).quantization == stored


def test_scales_are_counted_as_the_config_says(tmp_path: Path) -> None:
    """A 16-bit scale and a 4-bit zero point for a group, and for int8 the scale."""
    matrices = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336)
    plain = load_profile(write_config(tmp_path, LLAMA_8B)).weights_bytes - 2 * matrices

    def shared(**config: Any) -> float:
        """Bytes a matrix' weight takes beyond its own."""
        changed = {**LLAMA_8B, "quantization_config": config}
        size = load_profile(write_config(tmp_path, changed)).weights_bytes
        return (size - plain) / matrices - config.get("bits", 4) / 8

    for group in (32, 64, 128):
        for method in ("gptq", "awq", "auto-round"):
            found = shared(quant_method=method, bits=4, group_size=group)
            assert found == pytest.approx(2.5 / group, abs=1e-6)
        weights = {"weights": {"num_bits": 4, "type": "int", "group_size": group}}
        groups = {"group_0": weights, "group_1": {"weights": None}}
        found = shared(quant_method="compressed-tensors", config_groups=groups)
        assert found == pytest.approx(2.5 / group, abs=1e-6)
    assert shared(quant_method="gptq", bits=8, group_size=64) == pytest.approx(2 / 64, abs=1e-6)
    for group in (-1, None):
        found = shared(quant_method="gptq", bits=4, group_size=group)
        assert found == pytest.approx(2.5 / 128, abs=1e-6)


@pytest.mark.parametrize(
    ("quantization", "reason"),
    [
        ({"quant_method": "gptq", "bits": 4, "dynamic": {"-:attn": {}}}, "dynamic"),
        ({"quant_method": "auto-round", "bits": 4, "extra_config": {"x": {}}}, "extra_config"),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {
                    "group_0": {"weights": {"num_bits": 4, "type": "int"}},
                    "group_1": {"weights": {"num_bits": 8, "type": "int"}},
                },
            },
            "config_groups",
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {
                    "a": {"weights": {"num_bits": 4, "type": "int", "group_size": 32}},
                    "b": {"weights": {"num_bits": 4, "type": "int", "group_size": 128}},
                },
            },
            "config_groups",
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "float"}}},
            },
            "fp4",
        ),
    ],
)
def test_a_mixture_is_sized_by_headers_and_never_from_a_config(
    quantization: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    config = write_config(tmp_path, {**TINY, "quantization_config": quantization})
    with pytest.raises(UnknownModel, match=f"'{reason}' is not sized from a config"):
        load_profile(config)
    assert load_profile(config, weights_dtype="int4").quantization == "int4"
    layer = {"model.layers.0.mlp.up_proj.weight_packed": ("U8", [8, 4], 32)}
    safetensors(tmp_path / "model.safetensors", {**OUTSIDE, **layer})
    assert load_profile(tmp_path).layers[0].weights_bytes == 32


@pytest.mark.parametrize(
    "quantization",
    [
        {"quant_method": "bitsandbytes", "load_in_4bit": True},
        {"quant_method": "gptq", "bits": 3},
        {"quant_method": "gptq"},
        {},
        {"quant_method": "compressed-tensors"},
        {
            "quant_method": "compressed-tensors",
            "config_groups": {"g": {"weights": {"num_bits": 2, "type": "int"}}},
        },
    ],
)
def test_a_format_nobody_knows_is_refused_with_the_hook_that_can_teach_it(
    quantization: dict[str, Any], tmp_path: Path
) -> None:
    config = write_config(tmp_path, {**LLAMA_8B, "quantization_config": quantization})
    with pytest.raises(UnknownModel, match=r"quantization_config: .*hook arcpp_model_profile"):
        load_profile(config)


def test_unknown_formats_and_architectures_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UnknownModel, match=r"GodzillaForCausalLM.*arcpp_model_profile"):
        load_profile(write_config(tmp_path, {"architectures": ["GodzillaForCausalLM"]}))
    config = {**LLAMA_8B, "quantization_config": {"quant_method": "exl9"}}
    with pytest.raises(UnknownModel, match="exl9"):
        load_profile(write_config(tmp_path, config))
    with pytest.raises(BadInput, match="weights-dtype"):
        load_profile(write_config(tmp_path, LLAMA_8B), weights_dtype="int3")


@pytest.mark.parametrize(
    "change",
    [
        {"num_hidden_layers": None},
        {"num_hidden_layers": 0},
        {"num_hidden_layers": 10**9},
        {"num_hidden_layers": "many"},
        {"num_hidden_layers": True},
        {"hidden_size": -4096},
        {"hidden_size": 1e300},
        {"vocab_size": None},
        {"architectures": []},
        {"architectures": "LlamaForCausalLM"},
        {"tie_word_embeddings": "yes"},
        {"torch_dtype": "int7"},
        {"quantization_config": "fp8"},
        {"max_position_embeddings": -1},
        {"num_attention_heads": 7},
        {"num_key_value_heads": 5},
        {"num_key_value_heads": 64},
        {"sliding_window": -5},
        {"sliding_window": "long"},
        {"sliding_window": 128, "layer_types": ["linear_attention"] * 32},
        {"rope_scaling": "yarn"},
        {"rope_scaling": {"type": "linear", "factor": -1}},
        {"rope_scaling": {"type": "linear", "factor": True}},
        {"rope_scaling": {"type": "linear", "factor": 1e30}},
        {"rope_scaling": {"rope_type": ["linear"], "factor": 2}},
        {"rope_scaling": {"type": {}, "factor": 2}},
        {"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": "2"}}},
        {"rope_parameters": {"rope_type": "yarn", "original_max_position_embeddings": 0.5}},
        {"rope_parameters": {"partial_rotary_factor": 0}},
        {"partial_rotary_factor": "half"},
        {"architectures": ["Qwen3ForCausalLM"], "use_sliding_window": True, "sliding_window": 9},
    ],
)
def test_missing_or_absurd_fields_are_one_line(change: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(BadInput) as caught:
        load_profile(write_config(tmp_path, {**LLAMA_8B, **change}))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize(
    "change",
    [
        {"layer_types": ["full_attention"] * 64},
        {"layer_types": ["full_attention"] * 3},
        {"layer_types": ["sliding_attention"] * 64},
        {"layer_types": "full_attention"},
        {"linear_conv_kernel_dim": 1},
        {"mamba_ssm_dtype": "float7"},
        {"mtp_num_hidden_layers": 10**6},
    ],
)
def test_contradictions_in_a_hybrid_config_are_refused(
    change: dict[str, Any], tmp_path: Path
) -> None:
    config = {**QWEN35_27B, "text_config": {**QWEN35_27B["text_config"], **change}}
    with pytest.raises(BadInput):
        load_profile(write_config(tmp_path, config))


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("model.layers.7.mlp.gate_proj.weight", 7),
        ("model.language_model.layers.0.linear_attn.A_log", 0),
        ("backbone.layers.3.mixer.in_proj.weight", 3),
        ("model.layers.8.self_attn.q_proj.weight", 8),
        ("mtp.layers.0.self_attn.q_proj.weight", "mtp"),
        ("model.visual.blocks.0.attn.qkv.weight", "vision"),
        ("model.vision_tower.layers.0.x", "vision"),
        ("model.embed_tokens.weight", "embed"),
        ("backbone.embeddings.weight", "embed"),
        ("lm_head.weight", "lm_head"),
        ("model.norm.weight", "final_norm"),
        ("backbone.norm_f.weight", "final_norm"),
        ("model.layers.1.self_attn.rotary_emb.inv_freq", "ignored"),
        ("model.something_new.weight", None),
    ],
)
def test_owner_of_a_tensor(name: str, place: int | str | None) -> None:
    assert owner(name) == place


def test_a_place_that_is_no_model_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere", tmp_path, tmp_path / "nowhere.json"):
        with pytest.raises(BadModel):
            load_profile(path)


def test_sharded_checkpoint_counts_every_shard_once(tmp_path: Path) -> None:
    """The bundled model split in two files with an index."""
    raw = (BUNDLED / "model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    header.pop("__metadata__", None)
    names = sorted(header)
    weight_map = {}
    for part, chosen in enumerate((names[::2], names[1::2])):
        at, entries, data = 0, {}, b""
        for name in chosen:
            begin, end = header[name]["data_offsets"]
            entries[name] = {**header[name], "data_offsets": [at, at + end - begin]}
            data += raw[8 + length + begin : 8 + length + end]
            at += end - begin
            weight_map[name] = f"part{part}.safetensors"
        text = json.dumps(entries).encode()
        packed = struct.pack("<Q", len(text)) + text + data
        (tmp_path / f"part{part}.safetensors").write_bytes(packed)
    (tmp_path / "config.json").write_bytes((BUNDLED / "config.json").read_bytes())
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    whole, parts = load_profile(BUNDLED), load_profile(tmp_path)
    assert dict(parts.roles) == dict(whole.roles)
    assert parts.layers == whole.layers
    index.write_text(json.dumps({"weight_map": {**weight_map, "x": "../../etc/passwd"}}))
    with pytest.raises(BadModel):
        load_profile(tmp_path)
    index.write_text(json.dumps({"weight_map": {**weight_map, "x": "part9.safetensors"}}))
    with pytest.raises(BadModel):
        load_profile(tmp_path)


def safetensors(path: Path, tensors: dict[str, tuple[str, list[int], int]]) -> None:
    """A file of zeros: name -> (dtype, shape, bytes)."""
    at, header = 0, {}
    for name, (dtype, shape, size) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(at))


TINY = {
    **LLAMA_8B, "num_hidden_layers": 1, "hidden_size": 8, "num_attention_heads": 1,
    "num_key_value_heads": 1, "head_dim": 8, "intermediate_size": 8, "vocab_size": 4,
}  # fmt: skip
OUTSIDE = {
    "model.embed_tokens.weight": ("F32", [4, 8], 128),
    "model.norm.weight": ("F32", [8], 32),
    "lm_head.weight": ("F32", [4, 8], 128),
}


def test_plain_checkpoint_counts_in_the_dtype_it_runs_in(tmp_path: Path) -> None:
    config = write_config(tmp_path, TINY)
    weights = {**OUTSIDE, "model.layers.0.self_attn.q_proj.weight": ("F32", [8, 8], 256)}
    safetensors(tmp_path / "model.safetensors", weights)
    profile = load_profile(config.parent)
    assert profile.layers[0].weights_bytes == 128  # stored in float32, run in bfloat16
    assert load_profile(config.parent, dtype="float32").layers[0].weights_bytes == 256


@pytest.mark.parametrize(
    ("quantization", "tensors", "size"),
    [
        (
            {"quant_method": "fp8"},
            {"weight": ("F8_E4M3", [8, 8], 64), "weight_scale_inv": ("F32", [1, 1], 4)},
            68,
        ),
        (
            {"quant_method": "gptq", "bits": 4},
            {
                "qweight": ("I32", [1, 8], 32),
                "qzeros": ("I32", [1, 1], 4),
                "scales": ("F16", [1, 8], 16),
                "g_idx": ("I32", [8], 32),
            },
            84,
        ),
        (
            {"quant_method": "awq", "bits": 4},
            {"qweight": ("I32", [8, 1], 32), "scales": ("F16", [1, 8], 16)},
            48,
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int"}}},
            },
            {"weight_packed": ("I32", [8, 1], 32), "weight_shape": ("I64", [2], 16)},
            48,
        ),
    ],
    ids=["fp8", "gptq", "awq", "compressed-tensors"],
)
def test_quantised_checkpoint_counts_as_stored(
    quantization: dict[str, Any],
    tensors: dict[str, tuple[str, list[int], int]],
    size: int,
    tmp_path: Path,
) -> None:
    write_config(tmp_path, {**TINY, "quantization_config": quantization})
    layer = {f"model.layers.0.mlp.up_proj.{name}": value for name, value in tensors.items()}
    safetensors(tmp_path / "model.safetensors", {**OUTSIDE, **layer})
    profile = load_profile(tmp_path)
    assert profile.layers[0].weights_bytes == size
    assert profile.roles["embed"] == 128


def test_checkpoint_that_contradicts_its_config_is_refused(tmp_path: Path) -> None:
    config = {**TINY, "num_hidden_layers": 2}
    write_config(tmp_path, config)
    layer = {"model.layers.0.mlp.up_proj.weight": ("BF16", [8, 8], 128)}
    safetensors(tmp_path / "model.safetensors", {**OUTSIDE, **layer})
    with pytest.raises(BadModel, match="without any weights"):
        load_profile(tmp_path)
    write_config(tmp_path, TINY)
    safetensors(tmp_path / "model.safetensors", layer)
    with pytest.raises(BadModel, match="embed"):
        load_profile(tmp_path)
    strange = {"model.mystery.weight": ("BF16", [8], 16)}
    safetensors(tmp_path / "model.safetensors", {**OUTSIDE, **layer, **strange})
    with pytest.raises(BadModel, match="mystery"):
        load_profile(tmp_path)


def test_tower_without_weights_is_refused_and_with_them_counted(tmp_path: Path) -> None:
    config = {
        **GEMMA4, "architectures": ["Gemma4ForConditionalGeneration"], "vision_config": {"x": 1},
        "num_hidden_layers": 1,
    }  # fmt: skip
    write_config(tmp_path, config)
    with pytest.raises(BadModel, match="vision_config"):
        load_profile(tmp_path)
    safetensors(
        tmp_path / "model.safetensors",
        {
            "model.language_model.embed_tokens.weight": ("BF16", [8], 16),
            "model.language_model.norm.weight": ("BF16", [8], 16),
            "model.language_model.layers.0.mlp.up_proj.weight": ("BF16", [8, 8], 128),
            "model.vision_tower.encoder.layers.0.weight": ("BF16", [4], 8),
        },
    )
    assert load_profile(tmp_path).roles["vision"] == 8


def test_rotary_table_is_the_one_vllm_builds(tmp_path: Path) -> None:
    """1,048,576 bytes for the bundled model, read off the loaded model's buffers."""
    assert load_profile(BUNDLED).rope_elements * 2 == 1_048_576
    assert load_profile(write_config(tmp_path, LLAMA_8B)).rope_elements == 131072 * 128
    assert load_profile(write_config(tmp_path, NEMOTRON)).rope_elements == 0
    assert load_profile(write_config(tmp_path, GRANITE)).rope_elements == 0


def test_rotary_tables_follow_the_kinds_of_layers(tmp_path: Path) -> None:
    """Two heads make two tables; gpt-oss keeps its own in float32; a factor makes more rows."""
    gemma = write_config(tmp_path, GEMMA4)
    assert load_profile(gemma).rope_elements == 262144 * (256 + 512)
    thin = {"sliding_attention": {"partial_rotary_factor": 0.5}, "full_attention": {"factor": 1}}
    gemma = write_config(tmp_path, {**GEMMA4, "rope_parameters": thin})
    assert load_profile(gemma).rope_elements == 262144 * (128 + 512)
    assert load_profile(write_config(tmp_path, GPT_OSS)).rope_elements == 131072 * 64 * 2
    yarn = {"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 32768}
    llama = write_config(tmp_path, {**LLAMA_8B, "rope_scaling": yarn})
    assert load_profile(llama).rope_elements == 131072 * 128


def test_length_is_scaled_by_the_parameters_of_a_kind_of_layer(tmp_path: Path) -> None:
    linear = {"full_attention": {"rope_type": "linear", "factor": 2.0}, "sliding_attention": {}}
    config = write_config(tmp_path, {**LLAMA_8B, "rope_parameters": linear})
    assert load_profile(config).max_model_len == 262144


def test_windows_of_a_llama_are_for_all_layers_or_as_layer_types_say(tmp_path: Path) -> None:
    """As in vLLM: without layer_types every layer, 0 for none, with layer_types those named."""

    def windows(**changes: Any) -> set[int | None]:
        profile = load_profile(write_config(tmp_path, {**LLAMA_8B, **changes}))
        return {layer.window for layer in profile.layers}

    assert windows(sliding_window=4096) == {4096}
    assert windows(sliding_window=0) == windows(sliding_window=None) == {None}
    mixed = ["sliding_attention", "full_attention"] * 16
    assert windows(sliding_window=4096, layer_types=mixed) == {4096, None}
    assert windows(sliding_window=4096, layer_types=["full_attention"] * 32) == {None}


def test_weights_of_more_layers_than_the_config_has_are_refused(tmp_path: Path) -> None:
    """Unless the config says that there are draft layers: those come after the model's own."""
    config = json.loads((BUNDLED / "config.json").read_text("utf-8"))
    text = config["text_config"]
    for drafts in (1, 0):
        text["mtp_num_hidden_layers"] = drafts
        write_config(tmp_path, config)
        tensors = [
            TensorInfo(name.replace("mtp.layers.0", "model.layers.8"), dtype, shape, size)
            for name, dtype, shape, size in (
                (t.name, t.dtype, t.shape, t.stored_bytes) for t in read_checkpoint(BUNDLED)
            )
        ]
        if drafts:
            assert from_tensors(config, "x", tensors, None).roles["mtp"] > 0
            continue
        with pytest.raises(BadModel, match="only 8 layers"):
            from_tensors(config, "x", tensors, None)


def test_an_empty_weights_dtype_is_no_format(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="weights-dtype"):
        load_profile(write_config(tmp_path, LLAMA_8B), weights_dtype="")


@pytest.mark.parametrize(
    "name",
    [
        "model.safetensors",
        "config.json",
        "openvino_model.xml",
        "openvino_language_model.xml",
        "model.safetensors.index.json",
    ],
)
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("gone", path)])
def test_what_is_there_and_no_plain_file_is_refused_and_never_read(
    name: str, make: Callable[[Path], None], tmp_path: Path
) -> None:
    """And never passed over: sizes from the config would not be those of the weights."""
    if name != "config.json":
        write_config(tmp_path, LLAMA_8B)
    make(tmp_path / name)
    with pytest.raises(BadModel, match="plain file"):
        load_profile(tmp_path)


@pytest.mark.parametrize("call", ["is_dir", "is_file", "iterdir"])
def test_what_cannot_be_seen_is_not_taken_for_absent(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder that may be entered but not listed had its weights sized from the config."""
    write_config(tmp_path, LLAMA_8B)

    def denied(*_: object) -> Any:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, call, denied)
    assert main(["plan", str(tmp_path), "--device", "a=80GiB"]) == 1
    err = capsys.readouterr().err
    assert "cannot be read: Permission denied" in err
    assert str(tmp_path) in err


def test_a_name_that_is_too_long_is_told_of_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("x" * 300, "x" * 300 + ".json", "x" * 9000):
        assert main(["plan", name, "--device", "a=80GiB"]) == 1
        err = capsys.readouterr().err
        assert err.startswith("arcpp: MODEL: 'xxx")
        assert "File name too long" in err
        assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("host", "source"),
    [("vllm", "safetensors"), ("openvino", "openvino"), (None, "openvino")],
)
def test_of_two_forms_the_one_counts_that_the_host_reads(
    host: str | None, source: str, tmp_path: Path
) -> None:
    write_config(tmp_path, TINY)
    layer = {"model.layers.0.mlp.up_proj.weight": ("BF16", [8, 8], 128)}
    safetensors(tmp_path / "model.safetensors", {**OUTSIDE, **layer})
    constant = '<layer id="{}" name="{}.weight" type="Const"><data element_type="i8" shape="8" '
    constant += 'offset="{}" size="8"/></layer>'
    names = ("model.layers.0.mlp", "model.embed_tokens", "lm_head")
    layers = [constant.format(i, name, 8 * i) for i, name in enumerate(names)]
    (tmp_path / "openvino_model.xml").write_text(f"<net>{''.join(layers)}</net>", "utf-8")
    (tmp_path / "openvino_model.bin").write_bytes(bytes(24))
    profile = load_profile(tmp_path, host=host)
    assert profile.source == source
    assert profile.layers[0].weights_bytes == (8 if source == "openvino" else 128)


def test_of_stored_experts_a_token_reads_the_chosen(tmp_path: Path) -> None:
    """Two of eight: a quarter of their bytes, and all of the rest."""
    config = {**QWEN3_30B, "num_hidden_layers": 1, "num_experts": 8, "num_experts_per_tok": 2}
    tensors = [
        TensorInfo("model.embed_tokens.weight", "BF16", (10,), 20),
        TensorInfo("lm_head.weight", "BF16", (10,), 20),
        TensorInfo("model.layers.0.self_attn.q_proj.weight", "BF16", (50,), 100),
        *(
            TensorInfo(f"model.layers.0.mlp.experts.{i}.up_proj.weight", "BF16", (40,), 80)
            for i in range(8)
        ),
    ]
    (layer,) = from_tensors(config, "x", tensors, None).layers
    assert layer.weights_bytes == 100 + 8 * 80
    assert layer.active_bytes == 100 + 2 * 80


def test_granites_stacked_experts_are_routed(tmp_path: Path) -> None:
    """Ten of 72, under names without "experts"."""
    config = {**GRANITE, "num_hidden_layers": 1, "layer_types": ["attention"]}
    tensors = [
        TensorInfo("model.embed_tokens.weight", "BF16", (10,), 20),
        TensorInfo("model.layers.0.self_attn.q_proj.weight", "BF16", (50,), 100),
        TensorInfo("model.layers.0.block_sparse_moe.router.layer.weight", "BF16", (5,), 10),
        TensorInfo("model.layers.0.block_sparse_moe.input_linear.weight", "BF16", (720,), 1440),
        TensorInfo("model.layers.0.block_sparse_moe.output_linear.weight", "BF16", (360,), 720),
    ]
    (layer,) = from_tensors(config, "x", tensors, None).layers
    assert layer.weights_bytes == 110 + 2160
    assert layer.active_bytes == 110 + 300


def test_each_deepstack_index_adds_a_merger(tmp_path: Path) -> None:
    """A norm over the merged patch (4 * 1152), two matrices and their biases, in bfloat16."""
    merged, out = 4 * 1152, 5120
    merger = 2 * merged + merged * merged + merged + merged * out + out
    sizes = []
    for indexes in ([], [8, 16, 24]):
        vision = {**QWEN35_27B["vision_config"], "deepstack_visual_indexes": indexes}
        config = {**QWEN35_27B, "vision_config": vision}
        sizes.append(load_profile(write_config(tmp_path, config)).roles["vision"])
    assert sizes[1] - sizes[0] == 3 * 2 * merger
