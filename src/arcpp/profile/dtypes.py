"""Element sizes of the number formats that checkpoints, configs and KV caches name."""

from __future__ import annotations

from arcpp.errors import BadInput

#: Bytes per element, by the name used in ``config.json`` and on the command line.
SIZES = {"float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1}

_ALIASES = {
    "float": "float32",
    "fp32": "float32",
    "f32": "float32",
    "half": "float16",
    "fp16": "float16",
    "f16": "float16",
    "bf16": "bfloat16",
}

#: Bits per element, by the name used in safetensors headers.
SAFETENSORS_BITS = {
    "BOOL": 8,
    "U8": 8,
    "I8": 8,
    "F8_E4M3": 8,
    "F8_E5M2": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "I64": 64,
    "U64": 64,
    "F64": 64,
    "C64": 64,
}

#: Formats a loader converts to the model's dtype; everything else stays as stored.
CONVERTED = frozenset({"F16", "BF16", "F32", "F64"})


def model_dtype(name: object, what: str) -> str:
    """Canonical dtype for activations (``float32``, ``float16``, ``bfloat16``).

    Raises BadInput, naming ``what``, for anything else.
    """
    if isinstance(name, str):
        bare = name.removeprefix("torch.")
        bare = _ALIASES.get(bare, bare)
        if bare in ("float32", "float16", "bfloat16"):
            return bare
    raise BadInput(what, name, "is not a dtype: write float16, bfloat16 or float32")
