"""Parameters of one layer or role, counted from a config, and the bytes a format makes of them.

Formats name what a checkpoint stores: ``bfloat16``/``float16``/``float32`` plain; ``fp8`` one
byte and a float32 scale per 128x128 block; ``int8`` one byte and a 16-bit scale per output
channel (counted as one per 4096 weights); ``int4`` half a byte and, per 128 weights, a 16-bit
scale and a 4-bit zero point; ``mxfp4`` half a byte and an 8-bit scale per 32 weights. Where the
checkpoint says how many weights share a scale, that counts for int8 and int4. Norms,
biases, routers, convolutions, embeddings and vision stay in the model's dtype.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from arcpp.errors import BadInput

from .dtypes import SIZES, model_dtype

#: Format -> bytes of a weight, bits of what a group of them shares, and how many are in a group.
_PACKED = {
    "fp8": (Fraction(1), 32, 128 * 128),
    "int8": (Fraction(1), 16, 4096),
    "int4": (Fraction(1, 2), 16 + 4, 128),
    "mxfp4": (Fraction(1, 2), 8, 32),
}
_GROUPED = frozenset({"int8", "int4"})
_SAME = {"fp8_e4m3": "fp8", "float8": "fp8", "w8a8": "int8", "gptq": "int4", "awq": "int4"}


@dataclass(frozen=True)
class WeightFormat:
    """How weights are stored. name: a key of the table above or a plain dtype. group: weights
    that share a scale, None for the usual number."""

    name: str
    dtype: str
    group: int | None = None

    def packed(self, parameters: int) -> int:
        """Bytes of that many parameters of quantisable matrices."""
        if self.name not in _PACKED:
            return self.plain(parameters)
        size, shared, usual = _PACKED[self.name]
        group = self.group if self.group and self.name in _GROUPED else usual
        return math.ceil(parameters * (size + Fraction(shared, 8 * group)))

    def plain(self, parameters: int) -> int:
        """Bytes of that many parameters kept in the model's dtype."""
        return parameters * SIZES[self.dtype]


def weight_format(name: str | None, dtype: str, group: int | None = None) -> WeightFormat:
    """The format called ``name`` (None: plain ``dtype``). Raises BadInput for an unknown one."""
    if name is None or name == "auto":
        return WeightFormat(dtype, dtype)
    known = _SAME.get(name.lower(), name.lower())
    if known in _PACKED:
        return WeightFormat(known, dtype, group)
    try:
        plain = model_dtype(known, "--weights-dtype")
    except BadInput:
        right = f"is not a weights format: write {', '.join(sorted(_PACKED))} or a float dtype"
        raise BadInput("--weights-dtype", name, right) from None
    return WeightFormat(plain, plain)


@dataclass(frozen=True)
class Inventory:
    """Parameter counts: matrices (quantisable), plain (never quantised) and routed experts.

    routed: parameters of all routed experts of a layer; chosen: the fraction of them that
    one token uses. wide: plain parameters always kept in float32.
    """

    matrices: int = 0
    plain: int = 0
    routed: int = 0
    chosen: Fraction = Fraction(1)
    wide: int = 0

    def bytes(self, form: WeightFormat) -> int:
        """Bytes on the device."""
        fixed = form.plain(self.plain) + 4 * self.wide
        return form.packed(self.matrices) + form.packed(self.routed) + fixed

    def active(self, form: WeightFormat) -> int:
        """Bytes that one token reads."""
        idle = form.packed(self.routed) - int(form.packed(self.routed) * self.chosen)
        return self.bytes(form) - idle


def total(parts: Iterable[Inventory]) -> Inventory:
    """Sum of inventories that share one ``chosen`` fraction (or have no experts)."""
    matrices = plain = routed = wide = 0
    chosen = Fraction(1)
    for part in parts:
        matrices, plain = matrices + part.matrices, plain + part.plain
        routed, wide = routed + part.routed, wide + part.wide
        if part.routed:
            chosen = part.chosen
    return Inventory(matrices, plain, routed, chosen, wide)
