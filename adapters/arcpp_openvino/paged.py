"""The paged form of a language model: tokens of all sequences in one row, caches as inputs.

Made once for the whole model; stages are cut from it. OpenVINO's transformation gives inputs
``past_lens``, ``block_indices`` and the like (see StepBatch), ``key_cache.N`` and ``value_cache.N``
per attention layer, ``conv_state_table.N`` and ``gated_delta_state_table.N`` per linear one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as ops
from openvino._offline_transformations import (
    paged_attention_transformation,
)

from arcpp.errors import BadModel

from .errors import last_line
from .folder import IrFolder, read_ir
from .graph import kind, redirect, upstream
from .layers import layer_ends
from .names import KV_TABLES, POSITIONS, ROWS, TABLES, known_name


@dataclass(frozen=True)
class PagedModel:
    """The whole model in paged form.

    ends: output of each decoder layer. logits: [rows, 1, vocabulary] or [rows, vocabulary],
    float32. Tokens go in as ``input_ids`` [tokens]. source: the file.
    """

    model: ov.Model
    ends: list[Any]
    logits: Any
    source: str

    def tables_by_layer(self) -> list[tuple[str, ...]]:
        """Names of each layer's KV and state tables."""
        found = []
        seen: set[str] = set()
        for end in self.ends:
            fresh = upstream([end], seen)
            names = (known_name(n.output(0)) for n in fresh.values() if kind(n) == "Parameter")
            found.append(tuple(sorted(one for one in names if one.startswith(TABLES))))
            seen |= fresh.keys()
        return found


def paged_model(core: Any, folder: IrFolder) -> PagedModel:
    """The model of ``folder`` in paged form. Nothing is compiled, no weight is copied.

    Raises BadModel for IRs that have none, or a wrong one.
    """
    source = str(folder.model)
    model = read_ir(core, folder.model)
    try:
        paged_attention_transformation(model)
    except RuntimeError as error:
        raise BadModel(source, "model", f"has no paged form: {last_line(error)}") from error
    if folder.embeddings is not None:
        _join_embeddings(model, read_ir(core, folder.embeddings), source)
    result = model.get_results()[0]
    _check_inputs(upstream([result.input_value(0)]), source)
    ends = layer_ends(model, source)
    _select_rows(model, ends[-1])
    if result.get_element_type() != ov.Type.f32:
        converted = ops.convert(result.input_value(0), "f32")
        result.input(0).replace_source_output(converted.output(0))
        model.validate_nodes_and_infer_types()
    return PagedModel(model, ends, result.input_value(0), source)


def _check_inputs(live: dict[str, Any], source: str) -> None:
    """Refuse a model without KV cache, or one that does not know where a token stands."""
    names = {known_name(node.output(0)) for node in live.values() if kind(node) == "Parameter"}
    if not any(one.startswith(TABLES) for one in names):
        raise BadModel(source, "model", "has neither KV cache nor state in its paged form")
    if any(one.startswith(KV_TABLES) for one in names) and not names & POSITIONS:
        right = (
            "does not reach its rotary embedding, so that its paged form counts tokens of other "
            "sequences too and gives wrong text: export it with its vision part (VLM-style)"
        )
        raise BadModel(source, "position_ids", right)


def _join_embeddings(model: ov.Model, embeddings: ov.Model, source: str) -> None:
    """Let ``model`` start at token ids: its ``inputs_embeds`` becomes the embeddings' output."""
    found = [p for p in model.get_parameters() if known_name(p.output(0)) == "inputs_embeds"]
    if not found or len(embeddings.inputs) != 1:
        raise BadModel(source, "inputs_embeds", "is no input of it, or its embeddings have others")
    (ids,) = embeddings.get_parameters()
    ids.set_partial_shape(ov.PartialShape([-1]))
    ids.set_element_type(ov.Type.i64)
    embeddings.validate_nodes_and_infer_types()
    ids.output(0).get_tensor().set_names({"input_ids"})
    rows = embeddings.get_results()[0].input_value(0)
    old = found[0].output(0)
    if rows.get_partial_shape().rank != old.get_partial_shape().rank:
        width = rows.get_partial_shape()[-1].get_length()
        rows = ops.reshape(rows, np.array([-1, width], np.int64), False).output(0)
    if rows.get_element_type() != old.get_element_type():
        rows = ops.convert(rows, old.get_element_type().to_string()).output(0)
    redirect(old, rows)
    model.add_parameters([ids])
    model.remove_parameter(found[0])
    model.validate_nodes_and_infer_types()


def _select_rows(model: ov.Model, end: Any) -> None:
    """Only rows that are asked for go through what follows the last layer's ``end``."""
    rows = ops.parameter(ov.PartialShape([-1]), ov.Type.i32, name=ROWS)
    rows.output(0).get_tensor().set_names({ROWS})
    chosen = ops.gather(end, rows, np.array(0, np.int64))
    redirect(end, chosen.output(0))
    model.add_parameters([rows])
    model.validate_nodes_and_infer_types()
