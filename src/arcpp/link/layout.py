"""Where the tensors of a hop lie in a slot, and whether a hop is one that was agreed on."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from .frame import BoundarySpec, TensorSpec, describe

#: Every tensor starts at a multiple of this in a slot: a cache line, and enough for any dtype.
ALIGNMENT = 64


@dataclass(frozen=True, eq=False)
class Layout:
    """One hop's payload.

    specs: its tensors. described: them as a header says it. offsets: where each tensor starts,
    in bytes. nbytes: of the payload, with the gaps between tensors.
    """

    specs: tuple[TensorSpec, ...]
    described: bytes
    offsets: tuple[int, ...]
    nbytes: int


@functools.lru_cache(maxsize=512)
def layout_of(specs: tuple[TensorSpec, ...]) -> Layout:
    """The layout of a hop of these tensors. Raises ValueError for what a header cannot say."""
    described = describe(specs)
    offsets, at = [], 0
    for spec in specs:
        offsets.append(at)
        at += -(-spec.nbytes // ALIGNMENT) * ALIGNMENT
    return Layout(specs, described, tuple(offsets), at)


def contradiction(specs: tuple[TensorSpec, ...], boundary: BoundarySpec) -> str | None:
    """How a hop differs from what may cross ``boundary``, or None.

    A tensor that the boundary names has its dtype, its trailing dimensions and at most its
    first dimension. Others are the model's business and pass.
    """
    expected = {spec.name: spec for spec in boundary.tensors}
    for spec in specs:
        known = expected.get(spec.name)
        if known is None:
            continue
        same = spec.dtype == known.dtype and spec.shape[1:] == known.shape[1:]
        if not same or len(spec.shape) != len(known.shape) or spec.shape[:1] > known.shape[:1]:
            return (
                f"{spec.name} is {spec.dtype}{list(spec.shape)}, "
                f"at most {known.dtype}{list(known.shape)} was agreed on"
            )
    return None
