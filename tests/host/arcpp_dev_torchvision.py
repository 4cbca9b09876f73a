"""Make PyPI's torchvision importable beside a CPU build of torch. Development only.

Symptom: ``RuntimeError: operator torchvision::nms does not exist`` on ``import torchvision``,
which vLLM's Qwen3.5 needs for its image transforms. PyPI carries torchvision's CUDA build only,
whose native library does not load beside CPU torch; its Python part then registers fake kernels
for operators that nobody declared. Declaring the two is enough for everything but those operators.

Loaded from a ``.pth`` file, so that it is there in every process, spawned ones included, and
costs nothing until somebody imports torchvision.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_libraries: list[object] = []  # torch drops the schemas when the Library object dies


class _BeforeTorchvision(MetaPathFinder):
    """On the first import of torchvision: declare the operators, then step aside."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "torchvision":
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path)
        if spec is not None and not _libraries:
            import torch

            if torch.version.cuda is None:
                library = torch.library.Library("torchvision", "DEF")
                for schema in _SCHEMAS:
                    library.define(schema)
                _libraries.append(library)
        return spec


def install() -> None:
    """Register the finder once."""
    if not any(isinstance(finder, _BeforeTorchvision) for finder in sys.meta_path):
        sys.meta_path.insert(0, _BeforeTorchvision())
