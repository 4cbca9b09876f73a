"""Cut a paged model into stages between decoder layers.

A stage takes the hidden state of the layer before it, and what later layers read of earlier ones'
shapes: those few small vectors (``ShapeOf``) cross the cut too. Rotary tables and masks hang off
the step's inputs and are computed in every stage that needs them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from arcpp.errors import BadModel
from arcpp.partition import Partition, Stage

from .graph import kind, name, redirect, sources, upstream
from .names import HIDDEN, LOGITS, SHAPE, known_name
from .paged import PagedModel


@dataclass(frozen=True)
class Piece:
    """One stage's model. takes: names of inputs from other stages. gives: outputs to other stages,
    and the logits, with what the whole model knows of their shapes."""

    stage: Stage
    model: ov.Model
    takes: tuple[str, ...]
    gives: Mapping[str, Any]


def cut(paged: PagedModel, partition: Partition) -> list[Piece]:
    """Models of the stages of ``partition``. They share the constants of ``paged``, which stays
    as it is. Raises BadModel where something but shapes would cross."""
    pieces: list[Piece] = []
    wanted: set[str] = set()  # shapes that later stages take and no stage gives yet
    # By number: OpenVINO makes names up as it goes, and a cache of compiled stages looks at them.
    order = [name(node) for node in paged.model.get_ordered_ops()]
    for stage in reversed(partition.stages):
        piece = _piece(paged, order, stage, wanted)
        pieces.insert(0, piece)
        wanted -= set(piece.gives)
        wanted |= {one for one in piece.takes if one.startswith(SHAPE)}
    assert not wanted  # the first stage holds whatever nobody gave
    return pieces


def _piece(paged: PagedModel, order: list[str], stage: Stage, wanted: set[str]) -> Piece:
    model = paged.model.clone()
    nodes = {name(node): node for node in model.get_ordered_ops()}
    beyond: set[str] = set()  # data of earlier layers
    hidden = f"{HIDDEN}{stage.low}"
    fresh = []
    if stage.low:
        end = _same(nodes, paged.ends[stage.low - 1])
        fresh.append(_input(hidden, end))
        redirect(end, fresh[0].output(0))
        beyond = _data_of_tokens(model)
    outputs = {LOGITS: _same(nodes, paged.logits)}
    if stage.high < len(paged.ends):
        outputs = {f"{HIDDEN}{stage.high}": _same(nodes, paged.ends[stage.high - 1])}
    for want in sorted(wanted):
        node = nodes[order[int(want.removeprefix(SHAPE))]]
        if not any(name(source) in beyond for source in sources(node)):
            outputs[want] = node.output(0)
    needed = _shapes_needed(outputs, beyond, paged.source, stage.low)
    for number in sorted(order.index(one) for one in needed):
        node = nodes[order[number]]
        fresh.append(_input(f"{SHAPE}{number}", node.output(0)))
        redirect(node.output(0), _with_known_sizes(node, fresh[-1]))
    gives = {said: output.get_partial_shape() for said, output in outputs.items()}
    for said, output in outputs.items():
        output.get_tensor().add_names({said})
    live = upstream(outputs.values())
    taken = {known_name(parameter.output(0)) for parameter in fresh}
    parameters = [*(p for p in model.get_parameters() if name(p) in live), *fresh]
    made = ov.Model(list(outputs.values()), parameters, f"layers_{stage.low}_{stage.high}")
    return Piece(stage, made, tuple(sorted(taken)), gives)


def _same(nodes: dict[str, Any], output: Any) -> Any:
    """The output of a clone that corresponds to ``output`` of its original."""
    return nodes[name(output.get_node())].output(output.get_index())


def _input(said: str, output: Any) -> Any:
    """A new input for what ``output`` has."""
    shape, dtype = output.get_partial_shape(), output.get_element_type()
    parameter = ops.parameter(shape, dtype, name=said)
    parameter.output(0).get_tensor().set_names({said})
    return parameter


def _with_known_sizes(shape_of: Any, taken: Any) -> Any:
    """``taken`` with constants for the sizes that the whole model knows, so that the stage is
    compiled as well as the whole model is: sizes out of an input are unknown to a compiler."""
    sizes = shape_of.input_value(0).get_partial_shape()
    dtype = shape_of.output(0).get_element_type().to_dtype()
    parts = [
        ops.gather(taken, np.array([at], np.int64), np.array(0, np.int64))
        if size.is_dynamic
        else ops.constant(np.array([size.get_length()], dtype))
        for at, size in enumerate(sizes)
    ]
    return ops.concat(parts, 0).output(0)


def _data_of_tokens(model: ov.Model) -> set[str]:
    """Operations whose values depend on the token ids; their shapes do too, but are not data."""
    found: set[str] = set()
    for node in model.get_ordered_ops():
        if kind(node) == "Parameter":
            if "input_ids" in node.output(0).get_names():
                found.add(name(node))
        elif kind(node) != "ShapeOf" and any(name(source) in found for source in sources(node)):
            found.add(name(node))
    return found


def _shapes_needed(outputs: dict[str, Any], beyond: set[str], source: str, low: int) -> set[str]:
    """ShapeOf operations of earlier layers' data that ``outputs`` depend on."""
    needed: set[str] = set()
    seen: set[str] = set()
    waiting = [output.get_node() for output in outputs.values()]
    while waiting:
        node = waiting.pop()
        if name(node) in seen:
            continue
        seen.add(name(node))
        if name(node) in beyond:
            right = f"of an earlier layer is read behind layer {low}: no cut is possible there"
            raise BadModel(source, name(node), right)
        if kind(node) == "ShapeOf" and any(name(one) in beyond for one in sources(node)):
            needed.add(name(node))
        else:
            waiting += sources(node)
    return needed
