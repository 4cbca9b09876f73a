"""Make a ModelProfile of a config, and of tensor headers where there are any."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path
from typing import Any

from arcpp.errors import BadModel, UnknownModel

from .dtypes import CONVERTED, SIZES, model_dtype
from .families import FAMILIES
from .fields import Fields
from .inventory import WeightFormat, weight_format
from .model import Layer, ModelProfile
from .openvino_ir import folder_sizes
from .quantized import check_alone, stored_format
from .readers import TensorInfo
from .roles import IGNORED, ROUTED, owner
from .rope import longest, rope_elements
from .shapes import Family, LayerShape


def from_config(
    config: dict[str, Any], where: str, weights_dtype: str | None, dtype: str | None
) -> ModelProfile:
    """Profile computed from a config alone.

    weights_dtype: the checkpoint's format, by default what ``quantization_config`` says.
    dtype: activations, by default the config's. Raises BadModel, UnknownModel, BadInput.
    """
    model = _Model(config, where, dtype)
    whole, text, family, run = model.whole, model.text, model.family, model.run
    if family.unsized is not None:
        right = "of this family is not sized from a config: give the folder with the weights"
        raise BadModel(where, family.unsized, right)
    if weights_dtype is None and model.stored is not None:
        check_alone(model.stored, where)
        form = weight_format(model.stored.name, run, model.stored.group)
    else:
        form = weight_format(weights_dtype, run)
    hidden, vocab = text.count("hidden_size"), text.count("vocab_size")
    tied = tie(whole, text)
    roles = {"embed": form.plain(vocab * hidden), "final_norm": form.plain(family.final_norm)}
    if not tied:
        roles["lm_head"] = form.plain(vocab * hidden)
    if family.vision is not None:
        roles["vision"] = family.vision.bytes(form)
    if family.mtp_extra is not None:
        drafts = sum(shape.parameters.bytes(form) for shape in family.mtp)
        roles["mtp"] = family.mtp_extra.bytes(form) + drafts
    return _profile(
        model.name, family, text, tied, run,
        layers=tuple(_computed(shape, form) for shape in family.layers),
        roles=roles,
        mtp=tuple(_computed(shape, form) for shape in family.mtp),
        source="config",
        stored=None if form.name == run else form.name,
    )  # fmt: skip


def from_tensors(
    config: dict[str, Any], where: str, tensors: Iterable[TensorInfo], dtype: str | None
) -> ModelProfile:
    """Profile whose sizes are those stored in the checkpoint.

    Float matrices of an unquantised checkpoint are counted in ``dtype``, as the loader
    converts them; everything else as stored. Raises as :func:`from_config`, and BadModel when
    tensors and config contradict each other.
    """
    model = _Model(config, where, dtype)
    sizes: dict[int | str, int] = {}
    routed: dict[int | str, int] = {}
    for tensor in tensors:
        place = owner(tensor.name)
        if place is None:
            raise BadModel(where, tensor.name[:120], "is a tensor of no known layer or role")
        if place == IGNORED:
            continue
        place = model.place(place)
        size = _kept_bytes(tensor, model.run, model.stored is not None)
        sizes[place] = sizes.get(place, 0) + size
        if ROUTED.search(tensor.name):
            routed[place] = routed.get(place, 0) + size
    if "embed" not in sizes:
        raise BadModel(where, "embed_tokens", "is in no weights file")
    return _from_sizes(model, sizes, routed, "safetensors")


def from_ir(config: dict[str, Any], folder: Path, dtype: str | None) -> ModelProfile:
    """Profile of an OpenVINO export: sizes as packed. Raises as :func:`from_tensors`."""
    model = _Model(config, str(folder), dtype)
    sizes: dict[int | str, int] = {}
    for place, size in folder_sizes(folder).items():
        known = model.place(place)
        sizes[known] = sizes.get(known, 0) + size
    if "embed" not in sizes:
        sizes["embed"] = sizes.pop("lm_head", 0)  # a tied model keeps one matrix, for both
    shares = {place: model.share(place) for place in sizes}
    routed = {place: int(size * shares[place]) for place, size in sizes.items()}
    return _from_sizes(model, sizes, routed, "openvino")


class _Model:
    """A config taken apart. stored: the checkpoint's format, None when plain."""

    def __init__(self, config: dict[str, Any], where: str, dtype: str | None) -> None:
        self.where, self.whole = where, Fields(config, where)
        self.text = text_fields(self.whole)
        self.name = architecture(self.whole)
        self.family = FAMILIES[self.name](self.text, self.whole)
        self.run = run_dtype(self.whole, self.text, dtype)
        self.stored = stored_format(self.whole, self.text)

    def place(self, found: int | str) -> int | str:
        """Where ``found`` belongs: layers beyond the model's own are its draft layers, if any."""
        beyond = isinstance(found, int) and found >= len(self.family.layers)
        return "mtp" if beyond and self.family.mtp else found

    def share(self, place: int | str) -> Fraction:
        """Share of routed experts in a layer's parameters, where names do not tell."""
        if not isinstance(place, int):
            return Fraction(0)
        parts = self.family.layers[place].parameters
        return Fraction(parts.routed, max(1, parts.routed + parts.matrices + parts.plain))


def _from_sizes(
    model: _Model, sizes: dict[int | str, int], routed: dict[int | str, int], source: str
) -> ModelProfile:
    family = model.family
    missing = [index for index in range(len(family.layers)) if index not in sizes]
    if missing:
        right = f"is a layer of {len(family.layers)} without any weights"
        raise BadModel(model.where, missing[0], right)
    beyond = [place for place in sizes if isinstance(place, int) and place >= len(family.layers)]
    if beyond:
        right = f"is a layer in the weights, but the config has only {len(family.layers)} layers"
        raise BadModel(model.where, min(beyond), right)
    tied = tie(model.whole, model.text) or "lm_head" not in sizes
    if tied:
        sizes.pop("lm_head", None)
    roles = {role: size for role, size in sizes.items() if isinstance(role, str)}
    layers = tuple(
        _stored(shape, sizes[index], routed.get(index, 0))
        for index, shape in enumerate(family.layers)
    )
    drafts = family.mtp if "mtp" in roles else ()
    share = roles.get("mtp", 0) // max(1, len(drafts))
    return _profile(
        model.name, family, model.text, tied, model.run,
        layers=layers,
        roles=roles,
        mtp=tuple(_stored(shape, share, routed.get("mtp", 0)) for shape in drafts),
        source=source,
        stored=None if model.stored is None else model.stored.name,
    )  # fmt: skip


def _profile(
    name: str,
    family: Family,
    text: Fields,
    tied: bool,
    run: str,
    *,
    layers: tuple[Layer, ...],
    roles: dict[str, int],
    mtp: tuple[Layer, ...],
    source: str,
    stored: str | None,
) -> ModelProfile:
    return ModelProfile(
        architecture=name,
        layers=layers,
        roles=roles,
        tied=tied,
        dtype=run,
        hidden_size=text.count("hidden_size"),
        widths=max(shape.width for shape in family.layers),
        vocab_size=text.count("vocab_size"),
        max_model_len=longest(text),
        source=source,
        mtp_layers=mtp,
        duplicates=family.duplicates & (roles.keys() | {"embed"}),
        delta=family.delta,
        mamba_chunk=family.mamba_chunk,
        vision_width=family.vision_width,
        rope_elements=rope_elements(text, family.layers) * family.rotary,
        quantization=stored,
    )


def _computed(shape: LayerShape, form: WeightFormat) -> Layer:
    kept, active = shape.parameters.bytes(form), shape.parameters.active(form)
    return Layer(shape.kind, kept, active, shape.kv, shape.window, shape.state)


def _stored(shape: LayerShape, size: int, routed: int) -> Layer:
    idle = routed - int(routed * shape.parameters.chosen)
    return Layer(shape.kind, size, size - idle, shape.kv, shape.window, shape.state)


def _kept_bytes(tensor: TensorInfo, run: str, quantised: bool) -> int:
    if not quantised and tensor.dtype in CONVERTED:
        return tensor.elements * SIZES[run]
    return tensor.stored_bytes


def text_fields(whole: Fields) -> Fields:
    """The language model's part of a config: ``text_config`` where there is one."""
    return whole.inner("text_config") or whole


def architecture(whole: Fields) -> str:
    """The one known architecture a config names. Raises UnknownModel."""
    names = whole.raw("architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise BadModel(whole.where, "architectures", "is missing or not a list of names")
    if names[0] not in FAMILIES:
        raise UnknownModel(
            "architecture",
            names[0],
            "is not one arcpp understands; a plugin can teach it (hook arcpp_model_profile)",
        )
    return names[0]


def tie(whole: Fields, text: Fields) -> bool:
    """Whether embedding and lm_head share one matrix."""
    if text.has("tie_word_embeddings"):
        return text.flag("tie_word_embeddings", False)
    default = architecture(whole).startswith("Gemma")
    return whole.flag("tie_word_embeddings", default)


def run_dtype(whole: Fields, text: Fields, asked: str | None) -> str:
    """Activation dtype: ``asked``, or the config's, float32 lowered to bfloat16 as in vLLM."""
    if asked is not None and asked != "auto":
        return model_dtype(asked, "--dtype")
    for fields in (text, whole):
        for name in ("dtype", "torch_dtype"):
            if fields.has(name):
                found = model_dtype(fields.raw(name), f"{fields.where}: {name}")
                return "bfloat16" if found == "float32" else found
    return "bfloat16"
