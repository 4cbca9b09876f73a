"""A vLLM of any shape in sys.modules: what the adapter asks for, less what a test takes away.

Built from the adapter's own list of internals, so that it grows with it. It runs nothing; it
lets tests see what the adapter does with a vLLM that is not installed, past or future.
"""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any


@dataclass
class EngineArgs:
    """As much of vllm.engine.arg_utils.EngineArgs as matters before an engine exists."""

    distributed_executor_backend: Any = None
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 2
    async_scheduling: bool | None = None
    layers: int = 8
    seen: list[dict[str, Any]] = field(default_factory=list)

    def create_engine_config(self, usage_context: Any = None, headless: bool = False) -> Any:
        self.seen.append({"usage_context": usage_context, "headless": headless})
        return config(
            self.distributed_executor_backend,
            pipeline_parallel_size=self.pipeline_parallel_size,
            layers=self.layers,
            async_scheduling=self.async_scheduling,
        )


def config(backend: Any, *, layers: int = 8, async_scheduling: Any = None, **parallel: Any) -> Any:
    """A VllmConfig with this executor."""
    fields = {"tensor_parallel_size": 1, "pipeline_parallel_size": 2, "nnodes": 1} | parallel
    return SimpleNamespace(
        parallel_config=SimpleNamespace(distributed_executor_backend=backend, **fields),
        model_config=SimpleNamespace(get_total_num_hidden_layers=lambda: layers),
        scheduler_config=SimpleNamespace(async_scheduling=async_scheduling),
        use_v2_model_runner=False,
    )


class Executor:
    """vllm.v1.executor.abstract.Executor: get_class is what vLLM asks for an executor."""

    @staticmethod
    def get_class(vllm_config: Any) -> Any:
        return ("stock", vllm_config.parallel_config.distributed_executor_backend)


@contextmanager
def installed(
    folder: Path, version: str = "0.32.0", *, without: Iterable[str] = (), **changed: Any
) -> Iterator[SimpleNamespace]:
    """Fresh fake vLLM and fresh adapter modules; the ones that were there come back afterwards.

    without: internals ("module:attribute" or "module") to leave out; changed: replacements
    for ``EngineArgs`` and ``Executor``. Yields the adapter's compat and plugin, and the two.
    """
    before = _take_away("vllm", "arcpp_vllm")
    metadata = folder / f"vllm-{version}.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
    sys.path.insert(0, str(folder))
    try:
        compat = import_module("arcpp_vllm.compat")
        args, executor = _fresh(EngineArgs), _fresh(Executor)
        put("vllm.engine.arg_utils:EngineArgs", changed.get("EngineArgs", args))
        put("vllm.v1.executor.abstract:Executor", changed.get("Executor", executor))
        put("vllm.logger:init_logger", logging.getLogger)
        put("vllm.platforms:current_platform", SimpleNamespace(is_cpu=lambda: True))
        put("vllm:envs", ModuleType("vllm.envs"))
        for internal in compat.REGISTRATION + compat.EXECUTION:
            if not exists(internal.where):
                put(internal.where, _function(internal.parameters))
        for where in without:
            remove(where)
        yield SimpleNamespace(
            compat=compat,
            plugin=import_module("arcpp_vllm.plugin"),
            EngineArgs=changed.get("EngineArgs", args),
            Executor=changed.get("Executor", executor),
        )
    finally:
        sys.path.remove(str(folder))
        _take_away("vllm", "arcpp_vllm")
        sys.modules.update(before)


def put(where: str, value: Any) -> None:
    """Define "module:attribute" or "module:Class.attribute", making what is above it."""
    module, _, path = where.partition(":")
    *owners, name = path.split(".")
    target: Any = _module(module)
    for owner in owners:
        if not hasattr(target, owner):
            setattr(target, owner, type(owner, (), {}))
        target = getattr(target, owner)
    setattr(target, name, value)


def exists(where: str) -> bool:
    module, _, path = where.partition(":")
    target: Any = sys.modules.get(module)
    for name in path.split("."):
        target = getattr(target, name, None)
    return target is not None


def remove(where: str) -> None:
    """Take "module:attribute" away again, or a whole "module"."""
    module, _, path = where.partition(":")
    if not path:
        del sys.modules[module]
        return
    *owners, name = path.split(".")
    target: Any = sys.modules[module]
    for owner in owners:
        target = getattr(target, owner)
    delattr(target, name)


def _fresh(kind: type) -> type:
    """A copy that a test may wrap without the next test noticing."""
    return type(kind.__name__, (kind,), {k: v for k, v in vars(kind).items() if k != "__dict__"})


def _function(parameters: tuple[str, ...]) -> Any:
    def internal(*arguments: Any, **named: Any) -> None:
        """Takes exactly what the adapter gives it."""

    taken = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    taken += [inspect.Parameter(p, inspect.Parameter.POSITIONAL_OR_KEYWORD) for p in parameters]
    internal.__signature__ = inspect.Signature(taken)  # type: ignore[attr-defined]
    return internal


def _module(name: str) -> ModuleType:
    if name not in sys.modules:
        module = ModuleType(name)
        module.__path__ = []  # a package without files: what is not put here is not there
        sys.modules[name] = module
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(_module(parent), child, module)
    return sys.modules[name]


def _take_away(*packages: str) -> dict[str, ModuleType]:
    names = [n for n in sys.modules if n.split(".")[0] in packages]
    return {name: sys.modules.pop(name) for name in names}
