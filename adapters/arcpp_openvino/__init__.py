"""OpenVINO engine: a model cut into stages, one compiled per device.

``Engine`` serves requests; ``arcpp_openvino.chain`` is the chain of stages under it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .engine import Engine, EngineOptions, EngineStats
    from .request import FinishReason, Generated, Piece, TooLong
    from .sampling import Sampling

_HOME = {
    "Engine": "engine",
    "EngineOptions": "engine",
    "EngineStats": "engine",
    "FinishReason": "request",
    "Generated": "request",
    "Piece": "request",
    "Sampling": "sampling",
    "TooLong": "request",
}

__all__ = [
    "Engine",
    "EngineOptions",
    "EngineStats",
    "FinishReason",
    "Generated",
    "Piece",
    "Sampling",
    "TooLong",
]


def __getattr__(name: str) -> Any:
    """Late, so that the package can be asked for its commands where OpenVINO is not installed."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{_HOME[name]}", __name__), name)
