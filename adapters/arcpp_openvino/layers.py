"""Where decoder layers end in an IR: by what the exporter wrote down, else by names."""

from __future__ import annotations

import json
import re
from typing import Any

import openvino as ov

from arcpp.errors import BadModel

from .graph import name

_RT_INFO = "hidden_states_decoder_layers"
_LAST_ADD = re.compile(r"(?:^|\.)layers\.(\d{1,6})/aten::add/Add_1$")


def layer_ends(model: ov.Model, source: str) -> list[Any]:
    """Output of each decoder layer, in order; the last may be that of the final norm behind it.

    source: the file, for errors. Raises BadModel where neither rt_info nor names tell.
    """
    nodes = {name(node): node for node in model.get_ordered_ops()}
    found = _written(model, nodes) or _named(nodes)
    if not found or sorted(found) != list(range(len(found))):
        right = "in it do not tell where decoder layers end: a model of another architecture"
        raise BadModel(source, "names", right)
    return [found[index] for index in range(len(found))]


def _written(model: ov.Model, nodes: dict[str, Any]) -> dict[int, Any] | None:
    """From rt_info; None where it is missing or of another form."""
    try:
        if not model.has_rt_info(_RT_INFO):
            return None
        layers = json.loads(model.get_rt_info(_RT_INFO).value)["layers"]
        return {
            int(index): nodes[said["producer"]].output(int(said["output_index"]))
            for index, said in layers.items()
        }
    except (KeyError, TypeError, ValueError, RuntimeError):
        return None


def _named(nodes: dict[str, Any]) -> dict[int, Any]:
    """From the second residual addition of each layer, as PyTorch exports name it."""
    return {
        int(match[1]): node.output(0)
        for text, node in nodes.items()
        if (match := _LAST_ADD.search(text))
    }
