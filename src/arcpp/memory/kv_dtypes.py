"""Bytes one token's keys and values take in the KV cache formats of vLLM."""

from __future__ import annotations

from arcpp.errors import BadInput
from arcpp.profile.dtypes import SIZES
from arcpp.profile.model import KvShape

_FP8 = frozenset({"fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc"})


def kv_token_bytes(shape: KvShape, kv_dtype: str, dtype: str) -> int:
    """Bytes of one token in one layer. kv_dtype: ``--kv-cache-dtype``; dtype: the model's.

    Raises BadInput for formats whose packing arcpp does not know.
    """
    if kv_dtype == "auto":
        return shape.elements * SIZES[dtype]
    if kv_dtype in ("float16", "bfloat16"):
        return shape.elements * 2
    if kv_dtype in _FP8:
        return shape.elements
    right = "is not a KV cache format arcpp can size: write auto, fp8, fp8_e4m3 or fp8_e5m2"
    raise BadInput("--kv-cache-dtype", kv_dtype, right)
