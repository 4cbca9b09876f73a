"""Walking an OpenVINO model's operations from Python."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from typing import Any


def name(node: Any) -> str:
    """What the operation is called; unique in a model."""
    return str(node.get_friendly_name())


def kind(node: Any) -> str:
    """Such as "Parameter", "ShapeOf"."""
    return str(node.get_type_name())


def sources(node: Any) -> Iterator[Any]:
    """Operations that ``node`` reads."""
    for index in range(node.get_input_size()):
        yield node.input_value(index).get_node()


def upstream(outputs: Iterable[Any], known: Container[str] = ()) -> dict[str, Any]:
    """Every operation that ``outputs`` depend on, by name; less those ``known`` and before them."""
    found: dict[str, Any] = {}
    waiting = [output.get_node() for output in outputs]
    while waiting:
        node = waiting.pop()
        if name(node) not in found and name(node) not in known:
            found[name(node)] = node
            waiting += sources(node)
    return found


def redirect(old: Any, new: Any) -> None:
    """Let everything that reads output ``old`` read ``new`` instead."""
    for target in list(old.get_target_inputs()):
        if target.get_node().get_friendly_name() != new.get_node().get_friendly_name():
            target.replace_source_output(new)
