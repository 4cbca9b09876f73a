"""Sizes: read what people write, print what people read.

Grammar: an integer is bytes. ``KiB MiB GiB TiB`` are binary, ``KB MB GB TB`` decimal, in any
case; decimals are allowed before a unit. Everything printed for people is GiB, everything in
JSON is bytes.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction

from .errors import BadSize

KiB = 1024
MiB = 1024**2
GiB = 1024**3

_UNITS = {
    "kib": KiB,
    "mib": MiB,
    "gib": GiB,
    "tib": 1024**4,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "b": 1,
}
_SIZE = re.compile(r"(\d+(?:\.\d+)?|\.\d+)\s*([kmgt]i?b|b)", re.IGNORECASE)
_RIGHT = "is not a size: write bytes (17179869184) or a number with a unit (16GiB, 11605MiB, 12GB)"
_TOO_LARGE = "is larger than any device (over 1 PiB)"
_LIMIT = 1024**5  # a pebibyte: no device, so a typing error


def parse_size(text: str | int, what: str = "size") -> int:
    """Bytes meant by ``text``, rounded down to a whole byte.

    Raises BadSize (with ``what`` as the option's name) on anything outside the grammar,
    negative or absurdly large values included.
    """
    if isinstance(text, bool) or not isinstance(text, (str, int)):
        raise BadSize(what, text, _RIGHT)
    if isinstance(text, int) and abs(text) > _LIMIT:
        raise BadSize(what, "a number of that size", _TOO_LARGE if text > 0 else _RIGHT)
    written = str(text).strip()
    if len(written) > 40:
        raise BadSize(what, text, _RIGHT)
    if re.fullmatch(r"\d+", written, re.ASCII):
        size = int(written)
    else:
        match = _SIZE.fullmatch(written)
        if match is None or not written.isascii():
            raise BadSize(what, text, _RIGHT)
        size = int(Fraction(match[1]) * _UNITS[match[2].lower()])
    if size > _LIMIT:
        raise BadSize(what, text, _TOO_LARGE)
    return size


def size_span(text: str, what: str = "size") -> tuple[int, int]:
    """Least and most bytes that ``text`` may stand for where it was rounded to the decimals that
    it has; the same twice for a size without any. Raises BadSize."""
    size = parse_size(text, what)
    match = _SIZE.fullmatch(text.strip())
    if match is None or "." not in match[1]:
        return size, size
    digits = len(match[1].partition(".")[2])
    unit = _UNITS[match[2].lower()]
    exact, half = Fraction(match[1]) * unit, Fraction(unit, 2 * 10**digits)
    return max(0, math.ceil(exact - half)), math.ceil(exact + half)


def format_gib(size: int) -> str:
    """``size`` bytes as GiB with two decimals, without the unit: ``"14.12"``."""
    return f"{size / GiB:.2f}"
