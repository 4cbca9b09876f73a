"""Bytes one token's keys and values take in the KV cache formats of vLLM."""

from __future__ import annotations

from arcpp.errors import BadInput
from arcpp.profile.dtypes import SIZES
from arcpp.profile.model import KvShape

_FP8 = frozenset({"fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc"})
_SCALED = frozenset({"int8_per_token_head", "fp8_per_token_head"})
_KNOWN = "auto, fp8, fp8_e4m3, fp8_e5m2, int8_per_token_head or int4_per_token_head"


def kv_token_bytes(shape: KvShape, kv_dtype: str, dtype: str) -> int:
    """Bytes of one token in one layer. kv_dtype: ``--kv-cache-dtype``; dtype: the model's.

    The per-token-head formats keep a float32 scale per head for keys and one for values.
    Raises BadInput for formats whose packing arcpp does not know.
    """
    if kv_dtype == "auto":
        return shape.elements * SIZES[dtype]
    if kv_dtype in ("float16", "bfloat16"):
        return shape.elements * 2
    if kv_dtype in _FP8:
        return shape.elements
    if kv_dtype in _SCALED:
        return shape.heads * (shape.head_dim + shape.head_dim_v + 8)
    if kv_dtype == "int4_per_token_head":
        return shape.heads * (shape.head_dim // 2 + shape.head_dim_v // 2 + 8)
    raise BadInput("--kv-cache-dtype", kv_dtype, f"cannot be sized by arcpp: write {_KNOWN}")
