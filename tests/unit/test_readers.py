"""Readers on broken and hostile files: one line each, bounded, and never another exception."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from arcpp.devices import Device, DeviceMemory
from arcpp.errors import BadInput, BadModel, DoesNotFit
from arcpp.planner import PlanRequest, make_plan
from arcpp.profile import load_profile
from arcpp.profile.openvino_ir import ir_sizes
from arcpp.profile.readers import parse_json, read_header, read_json
from arcpp.units import GiB

from .planner_models import BUNDLED, GEMMA4, GPT_OSS, GRANITE, LLAMA_8B, NEMOTRON, QWEN3_30B

FUZZ = settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def packed(header: object, data: bytes = b"", *, length: int | None = None) -> bytes:
    """A safetensors file; ``length`` lies about the header's."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def tensor(begin: int, end: int, shape: list[int], dtype: str = "U8") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def outcome(path: Path) -> str:
    """The refusal of a model or its plan, or nothing; any other exception is a failure."""
    card = Device("card", DeviceMemory(64 * GiB, 64 * GiB))
    try:
        make_plan(load_profile(path), [card], PlanRequest())
    except (BadInput, DoesNotFit) as error:
        return str(error)
    return ""


def read(tmp_path: Path, raw: bytes) -> Any:
    path = tmp_path / "x.safetensors"
    path.write_bytes(raw)
    return read_header(path)


def test_a_good_header_is_read(tmp_path: Path) -> None:
    header = {
        "__metadata__": {"format": "pt"},
        "a": tensor(0, 6, [3], "F16"),
        "b": tensor(6, 8, [2]),
    }
    tensors = read(tmp_path, packed(header, b"x" * 8))
    assert [(t.name, t.stored_bytes, t.elements) for t in tensors] == [("a", 6, 3), ("b", 2, 2)]
    assert read(tmp_path, packed({"e": tensor(0, 0, [0])})) != []


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x00" * 7,
        packed({}, length=2**63),
        packed({}, length=2**64 - 1),
        packed({}, length=100),
        packed(b"not json"),
        packed(b"[1, 2]"),
        packed(b"\xff\xfe\xff"),
        packed(b'{"a": {}, "a": {}}'),
        packed(b'{"a": NaN}'),
        packed({"a": 3}),
        packed({"a": {}}),
        packed({"a": tensor(0, 9, [9])}, b"x" * 8),
        packed({"a": tensor(0, 10**18, [10**18])}, b"x" * 8),
        packed({"a": tensor(0, 4, [4]), "b": tensor(2, 8, [6])}, b"x" * 8),
        packed({"a": tensor(0, 4, [4]), "b": tensor(6, 8, [2])}, b"x" * 8),
        packed({"a": tensor(0, 4, [4])}, b"x" * 8),
        packed({"a": tensor(4, 0, [4])}, b"x" * 4),
        packed({"a": tensor(-4, 0, [4])}, b"x" * 4),
        packed({"a": tensor(0, 4, [5])}, b"x" * 4),
        packed({"a": tensor(0, 4, [-4])}, b"x" * 4),
        packed({"a": tensor(0, 4, [2**62, 2**62])}, b"x" * 4),
        packed({"a": tensor(0, 4, [1] * 99)}, b"x" * 4),
        packed({"a": tensor(0, 4, [4], "Q9")}, b"x" * 4),
        packed({"a": {"dtype": 3, "shape": [4], "data_offsets": [0, 4]}}, b"x" * 4),
        packed({"a": {"dtype": "U8", "shape": [True], "data_offsets": [0, 1]}}, b"x"),
        packed({"a": {"dtype": "U8", "shape": [1.0], "data_offsets": [0, 1]}}, b"x"),
        packed(b"[" * 200_000),
        packed(b'{"a":' * 100_000),
    ],
)
def test_lying_headers_are_one_line(tmp_path: Path, raw: bytes) -> None:
    with pytest.raises(BadModel) as caught:
        read(tmp_path, raw)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 700


def test_json_is_bounded_in_size_and_depth(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(b" " * (17 * 1024**2))
    with pytest.raises(BadModel, match="too large"):
        read_json(path)
    deep = b'{"a":' * 65 + b"1" + b"}" * 65
    with pytest.raises(BadModel, match="nesting"):
        parse_json(deep, "x")
    with pytest.raises(BadModel):
        parse_json(b'["' + b'\\"' * 500_000 + b"[" * 200, "x")
    assert parse_json(b'{"a": "' + b"[{" * 500 + b'"}', "x") == {"a": "[{" * 500}
    with pytest.raises(BadModel):
        read_json(tmp_path)


@FUZZ
@given(st.binary(max_size=400))
def test_any_bytes_as_a_header(tmp_path: Path, raw: bytes) -> None:
    try:
        read(tmp_path, raw)
    except BadModel:
        return


@FUZZ
@given(st.binary(max_size=200), st.integers(0, 2000), st.integers(0, 255))
def test_flipped_bytes_in_a_real_header(
    tmp_path: Path, tail: bytes, position: int, value: int
) -> None:
    header = {f"t{i}": tensor(4 * i, 4 * i + 4, [2, 2]) for i in range(6)}
    raw = bytearray(packed(header, b"x" * 24))
    raw[position % len(raw)] = value
    try:
        read(tmp_path, bytes(raw) + tail)
    except BadModel:
        return


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


# Objects whose fields mean something, with any value in any of them.
NESTED = st.dictionaries(
    st.sampled_from(
        ["type", "rope_type", "factor", "original_max_position_embeddings", "quant_method", "bits",
         "partial_rotary_factor", "full_attention", "config_groups", "group_0", "weights", "format"]
    ),
    JSON,
)  # fmt: skip
FAMILIES = (
    LLAMA_8B, QWEN3_30B, GPT_OSS, GEMMA4, NEMOTRON, GRANITE,
)  # fmt: skip
MORE = (
    "sliding_window",
    "layer_types",
    "rope_scaling",
    "rope_parameters",
    "quantization_config",
    "use_sliding_window",
)


@FUZZ
@given(st.sampled_from(FAMILIES), st.data(), JSON | NESTED)
def test_any_value_in_a_config_field(
    tmp_path: Path, family: dict[str, Any], data: st.DataObject, value: Any
) -> None:
    name = data.draw(st.sampled_from(sorted({*family, *MORE})))
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**family, name: value}), encoding="utf-8")
    assert "\n" not in outcome(path)


BUNDLED_CONFIG = json.loads((BUNDLED / "config.json").read_text("utf-8"))


@FUZZ
@given(st.sampled_from(sorted(BUNDLED_CONFIG["text_config"])), JSON | NESTED)
def test_any_value_in_a_hybrid_config_field(tmp_path: Path, name: str, value: Any) -> None:
    config = {**BUNDLED_CONFIG, "text_config": {**BUNDLED_CONFIG["text_config"], name: value}}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    assert "\n" not in outcome(path)


IR = """<?xml version="1.0"?>
<net name="m" version="11"><layers>
<layer id="0" name="self.model.embed_tokens.weight" type="Const">
<data element_type="f16" shape="4, 2" offset="0" size="16"/></layer>
<layer id="1" name="Constant_7" type="Const">
<data element_type="u4" shape="3" offset="16" size="2"/></layer>
<layer id="2" name="__module.model.layers.0/aten::mul/Multiply" type="Multiply"/>
<layer id="3" name="__module.model.layers.1/loop" type="Loop"><body><layers>
<layer id="0" name="inner" type="Const">
<data element_type="f32" shape="" offset="18" size="4"/></layer>
</layers><edges><edge from-layer="0" from-port="0" to-layer="1" to-port="0"/></edges></body></layer>
<layer id="4" name="lm_head.weight" type="Const">
<data element_type="i8" shape="8" offset="22" size="8"/></layer>
<layer id="5" name="rope" type="Const">
<data element_type="i8" shape="2" offset="30" size="2"/></layer>
<layer id="6" name="same bytes" type="Const">
<data element_type="i8" shape="2" offset="30" size="2"/></layer>
</layers><edges><edge from-layer="1" from-port="0" to-layer="2" to-port="0"/></edges></net>
"""


def ir(tmp_path: Path, xml: str, size: int = 32) -> dict[int | str, int]:
    (tmp_path / "m.xml").write_text(xml, encoding="utf-8")
    (tmp_path / "m.bin").write_bytes(b"x" * size)
    return ir_sizes(tmp_path / "m.xml")


def test_constants_go_to_the_layer_they_flow_into(tmp_path: Path) -> None:
    assert ir(tmp_path, IR) == {"embed": 16, 0: 2, 1: 4, "lm_head": 8, "shared": 2}


BOMB = (
    '<?xml version="1.0"?><!DOCTYPE lolz [<!ENTITY a "aaaaaaaaaa">'
    + "".join(f'<!ENTITY {chr(98 + i)} "{f"&{chr(97 + i)};" * 10}">' for i in range(9))
    + "]><net>&j;</net>"
)


@pytest.mark.parametrize(
    "xml",
    [
        "",
        "not xml",
        "<net>",
        "<net/>",
        BOMB,
        '<!DOCTYPE net SYSTEM "file:///etc/passwd"><net/>',
        "<a>" * 100_000,
        IR.replace('offset="22"', 'offset="99"'),
        IR.replace('offset="22"', 'offset="-1"'),
        IR.replace('size="8"', 'size="9999999999999999999999"'),
        IR.replace('size="8"', 'size="7"'),
        IR.replace('shape="8"', 'shape="lots"'),
        IR.replace('shape="8"', 'shape="' + "9," * 40 + '9"'),
        IR.replace('element_type="i8" shape="8"', 'element_type="q8" shape="8"'),
    ],
)
def test_hostile_xml_is_one_line(tmp_path: Path, xml: str) -> None:
    with pytest.raises(BadModel) as caught:
        ir(tmp_path, xml)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 700


@FUZZ
@given(st.integers(0, len(IR) - 1), st.sampled_from('<>/&"0a '))
def test_flipped_characters_in_an_ir(tmp_path: Path, position: int, letter: str) -> None:
    try:
        ir(tmp_path, IR[:position] + letter + IR[position + 1 :])
    except BadModel:
        return


def test_profile_of_an_export(tmp_path: Path) -> None:
    """A folder as optimum writes it: the language model and parts beside it."""
    config = {
        **LLAMA_8B, "num_hidden_layers": 2, "hidden_size": 2, "vocab_size": 4,
        "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 2, "intermediate_size": 2,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (tmp_path / "openvino_model.xml").write_text(IR, encoding="utf-8")
    (tmp_path / "openvino_model.bin").write_bytes(b"x" * 32)
    profile = load_profile(tmp_path)
    assert profile.source == "openvino"
    assert dict(profile.roles) == {"embed": 16, "lm_head": 8, "shared": 2}
    assert [layer.weights_bytes for layer in profile.layers] == [2, 4]
    (tmp_path / "openvino_model.bin").unlink()
    with pytest.raises(BadModel):
        load_profile(tmp_path)
