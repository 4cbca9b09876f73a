"""arcpp: serve a model that is too big for one Intel Arc card across several.

The core plans layer splits, moves boundaries, bounds recurrent state and classifies faults.
It imports the standard library and pluggy only; torch, vllm and openvino belong to the
backends and adapters.
"""

from __future__ import annotations

from pluggy import HookimplMarker

from ._version import __version__

__all__ = ["__version__", "hookimpl"]

#: Marks a function of a plugin as the implementation of the hook it is named after.
hookimpl = HookimplMarker("arcpp")
