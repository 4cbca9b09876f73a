"""How large a stage's pool of recurrent state is, and what a place of it consists of, by its plan.

For hosts that keep state in tables of their own, as OpenVINO's engine does; vLLM's state lies in
its pool of blocks.
"""

from __future__ import annotations

from .errors import BadInput
from .link.frame import TensorSpec
from .plan import Plan
from .profile.dtypes import SIZES
from .profile.model import Layer, ModelProfile
from .state import PoolSize

_FLOATS = ("float16", "bfloat16", "float32")


def pool_size(plan: Plan, *, drafts: int = 0, snapshots: int = 0) -> PoolSize:
    """Slots for as many requests as the plan runs at once, on every stage alike.

    drafts: draft tokens per step (``--spec-tokens``). snapshots: states kept beside those of
    running requests, which the plan does not count. Raises BadInput for negative ones.
    """
    for what, value in (("--spec-tokens", drafts), ("snapshots", snapshots)):
        if value < 0:
            raise BadInput(what, value, "is negative")
    return PoolSize(max(1, plan.max_num_seqs), drafts, snapshots)


def state_arrays(
    profile: ModelProfile, low: int, high: int, *, columns: int = 0, dtype: str | None = None
) -> tuple[TensorSpec, ...]:
    """Arrays of one place on a stage with layers [low, high): two per recurrent layer, empty
    for a stage without any. An engine that has compiled the stage reads them from there instead.

    columns: of the convolution window beside those of the model (OpenVINO keeps 1 more). dtype:
    of both arrays (OpenVINO: "float32"); None: the model's for the window, and for the matrix
    what the model says. Raises BadInput for dtypes that hold no state.
    """
    if dtype is not None and dtype not in _FLOATS:
        raise BadInput("state dtype", dtype, f"is not one of {', '.join(_FLOATS)}")
    arrays: list[TensorSpec] = []
    for index, layer in enumerate(profile.layers[low:high], low):
        arrays += _of_layer(layer, index, columns, dtype, profile.dtype)
    return tuple(arrays)


def place_bytes(arrays: tuple[TensorSpec, ...]) -> int:
    """Bytes of one place: what one request keeps, or one of its draft tokens."""
    return sum(array.nbytes for array in arrays)


def _of_layer(
    layer: Layer, index: int, columns: int, dtype: str | None, of_model: str
) -> list[TensorSpec]:
    if layer.state is None:
        return []
    window, matrix = layer.state.shapes(columns)
    matrix_dtype = dtype or layer.state.ssm_dtype or of_model
    if SIZES[matrix_dtype] < 2:
        raise BadInput("state dtype", matrix_dtype, "is too small for recurrent state")
    return [
        TensorSpec(f"conv.{index}", dtype or of_model, window),
        TensorSpec(f"ssm.{index}", matrix_dtype, matrix),
    ]
