"""What a ``quantization_config`` says of how weights are stored.

Where headers are at hand the name is all that counts: sizes are as stored. A config alone is
believed only where it says one thing of all matrices.
"""

from __future__ import annotations

from dataclasses import dataclass

from arcpp.errors import UnknownModel

from .fields import Fields

_BY_NAME = {"fp8": "fp8", "fbgemm_fp8": "fp8", "mxfp4": "mxfp4"}
_BY_BITS = frozenset({"gptq", "gptq_marlin", "awq", "auto-round"})
_TEACH = "a plugin can teach it (hook arcpp_model_profile)"
#: Fields with which some modules are stored otherwise than the others.
_MIXED = ("dynamic", "extra_config", "mix_bits")


@dataclass(frozen=True)
class Stored:
    """A checkpoint's format. name: of a WeightFormat, or "fp4", which only headers size. group:
    weights that share a scale, where the config says. mixed: what stores parts otherwise."""

    name: str
    group: int | None = None
    mixed: str | None = None


def stored_format(whole: Fields, text: Fields) -> Stored | None:
    """The format in ``quantization_config``; None where there is none.

    Raises UnknownModel for a method whose sizes arcpp cannot tell, BadModel for odd fields.
    """
    config = whole.inner("quantization_config") or text.inner("quantization_config")
    if config is None:
        return None
    method = config.text("quant_method") or "unknown"
    if method in _BY_NAME:
        return Stored(_BY_NAME[method])
    if method == "compressed-tensors":
        return _compressed(config)
    bits = config.count("bits" if config.has("bits") else "w_bit", default=0)
    if method not in _BY_BITS or bits not in (4, 8):
        raise UnknownModel("quantization_config", method, f"is no format known to arcpp; {_TEACH}")
    mixed = next((name for name in _MIXED if config.raw(name)), None)
    return Stored("int4" if bits == 4 else "int8", _group(config), mixed)


def check_alone(stored: Stored, where: str) -> None:
    """Refuse (UnknownModel) to size weights of ``stored`` by the config alone, where it is not
    enough."""
    reason = stored.mixed or (stored.name if stored.name == "fp4" else None)
    if reason is not None:
        right = "is not sized from a config: give the folder with the weights, or --weights-dtype"
        raise UnknownModel(f"{where}: quantization_config", reason, right)


def _compressed(config: Fields) -> Stored:
    groups = config.inner("config_groups")
    found: list[Stored] = []
    for name in () if groups is None else groups.names():
        group = groups.inner(name) if groups is not None else None
        weights = None if group is None else group.inner("weights")
        if weights is not None:
            found.append(_of_weights(weights, config))
    if not found:
        right = f"without config_groups is no format known to arcpp; {_TEACH}"
        raise UnknownModel("quantization_config", "compressed-tensors", right)
    mixed = "config_groups" if len(set(found)) > 1 else None
    return Stored(found[0].name, found[0].group, mixed)


def _of_weights(weights: Fields, config: Fields) -> Stored:
    bits, kind = weights.count("num_bits"), weights.text("type")
    floating = "fp8" in (config.text("format") or "") if kind is None else kind == "float"
    names = {(8, True): "fp8", (8, False): "int8", (4, True): "fp4", (4, False): "int4"}
    if (bits, floating) not in names:
        right = f"bits of compressed-tensors are no format known to arcpp; {_TEACH}"
        raise UnknownModel("quantization_config", bits, right)
    return Stored(names[bits, floating], _group(weights))


def _group(config: Fields) -> int | None:
    size = config.count("group_size", default=0, least=-1)
    return size if size > 0 else None
