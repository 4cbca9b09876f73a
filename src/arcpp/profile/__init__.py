"""ModelProfile: bytes per layer and per role, without loading anything.

``load_profile`` reads a folder's ``config.json`` and safetensors headers or OpenVINO IR, or
computes the sizes from a bare ``config.json`` for the families in :mod:`.families`.
"""

from __future__ import annotations

from pathlib import Path

from arcpp.errors import BadModel

from .build import from_config, from_ir, from_tensors
from .files import is_folder, names_in
from .model import GatedDelta, KvShape, Layer, ModelProfile, RecurrentState
from .openvino_ir import main_ir
from .readers import read_checkpoint, read_json

__all__ = [
    "GatedDelta",
    "KvShape",
    "Layer",
    "ModelProfile",
    "RecurrentState",
    "load_profile",
]


def load_profile(
    path: str | Path,
    *,
    weights_dtype: str | None = None,
    dtype: str | None = None,
    host: str | None = None,
) -> ModelProfile:
    """Profile of the model at ``path``: a folder, or a bare ``config.json``.

    weights_dtype: for a bare config, the format weights are stored in (default: the config's).
    dtype: activations (default: the config's; vLLM's ``--dtype``). host: of a folder that holds an
    IR and safetensors, "vllm" reads the latter and every other the IR. Raises BadModel,
    UnknownModel or BadInput, each one line.
    """
    place = Path(path)
    if is_folder(place):
        config = read_json(place / "config.json")
        names = names_in(place) if weights_dtype is None else []
        tensors = any(name.endswith((".safetensors", ".safetensors.index.json")) for name in names)
        if main_ir(names) is not None and not (tensors and host == "vllm"):
            return from_ir(config, place, dtype)
        if tensors:
            return from_tensors(config, str(place), read_checkpoint(place), dtype)
        return from_config(config, str(place / "config.json"), weights_dtype, dtype)
    if place.suffix == ".json":
        return from_config(read_json(place), str(place), weights_dtype, dtype)
    right = "is neither a folder with config.json nor a config.json"
    if not place.exists() and str(path).count("/") == 1 and not str(path).startswith((".", "/")):
        right += f" (a name on a hub? fetch it first: hf download {path} --local-dir DIR)"
    raise BadModel("MODEL", str(path), right)
