"""What an import pulls in: never a runtime that the machine may not have or may not need."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CORE = ROOT / "src" / "arcpp"
RUNTIMES = ("torch", "vllm", "openvino", "openvino_genai", "numpy", "transformers")
PACKAGES = ("arcpp", "arcpp.cli", "arcpp_vllm", "arcpp_openvino", "arcpp_ovms")
# Loaded by vLLM's plugin loader in every process it starts, whatever executor runs.
LOADED_BY_EVERYBODY = ("arcpp_vllm.plugin",)
# Third-party packages of the core, and the rooms that may import them.
ALLOWED = {
    "pluggy": ("",),
    "click": ("cli",),
    "rich": ("cli", "report", "picture", "explain", "doctor", "bench"),
    "torch": ("backends", "testing"),
    "openvino": ("backends",),
}


@pytest.fixture(scope="module")
def decoys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Importable packages of the runtimes' names: an attempt succeeds, and so is seen."""
    folder = tmp_path_factory.mktemp("decoys")
    for name in RUNTIMES:
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text("def __getattr__(name): return object\n")
        (folder / name / "distributed.py").touch()
    return folder


def _loaded(decoys: Path, *modules: str, after: str = "") -> set[str]:
    """Top-level packages in a fresh process after importing ``modules``."""
    script = f"""if True:
        import importlib, sys
        for name in {modules!r}:
            importlib.import_module(name)
        {after}
        print("\\n".join({{name.partition(".")[0] for name in sys.modules}}))
    """
    path = os.pathsep.join((str(decoys), str(ROOT / "src"), str(ROOT / "adapters")))
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return set(done.stdout.split())


@pytest.mark.parametrize("module", [*PACKAGES, *LOADED_BY_EVERYBODY])
def test_importing_pulls_in_no_runtime(decoys: Path, module: str) -> None:
    assert _loaded(decoys, module) & set(RUNTIMES) == set()


def test_importing_the_core_loads_no_command_line(decoys: Path) -> None:
    assert _loaded(decoys, "arcpp") & {"click", "rich"} == set()


def test_registering_without_vllm_loads_no_runtime(decoys: Path) -> None:
    after = "sys.modules['arcpp_vllm.plugin'].register()"
    assert _loaded(decoys, "arcpp_vllm.plugin", after=after) & set(RUNTIMES) == set()


def test_every_core_module_can_be_imported_without_a_runtime(decoys: Path) -> None:
    modules = [module for module in _modules() if ".backends." not in module]
    assert len(modules) > 30
    assert _loaded(decoys, *modules) & set(RUNTIMES) == set()


def test_an_import_would_be_seen(decoys: Path) -> None:
    """The checks above can fail."""
    assert "torch" in _loaded(decoys, "arcpp", after="import torch")
    assert "torch" in _loaded(decoys, "arcpp.backends.gloo_link")


def test_third_party_imports_are_those_agreed_on() -> None:
    found = {(package, room) for path in CORE.rglob("*.py") for package, room in _third_party(path)}
    allowed = {
        (package, room)
        for package, room in found
        if package in ALLOWED and (room in ALLOWED[package] or ALLOWED[package] == ("",))
    }
    assert found == allowed, "not agreed on, or not in that room"
    assert {"pluggy", "click", "rich", "torch"} <= {package for package, _ in found}


def test_what_is_imported_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = {requirement.partition(">")[0] for requirement in project["dependencies"]}
    assert declared == set(ALLOWED) - {"torch", "openvino"}


@pytest.mark.parametrize("adapter", ["arcpp_vllm", "arcpp_openvino", "arcpp_ovms"])
def test_adapters_import_no_private_name_of_the_core(adapter: str) -> None:
    private = [
        f"{path.name}: {node.module}.{alias.name}"
        for path in (ROOT / "adapters" / adapter).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "arcpp"
        for alias in node.names
        if alias.name.startswith("_") or "._" in (node.module or "")
    ]
    assert private == []


def _modules() -> list[str]:
    """Dotted names of every module of the core, except the one that runs when imported."""
    names = []
    for path in sorted(CORE.rglob("*.py")):
        parts = path.relative_to(CORE.parent).with_suffix("").parts
        if parts[-1] != "__main__":
            names.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return names


def _third_party(path: Path) -> Iterator[tuple[str, str]]:
    """Packages outside the standard library that a module imports anywhere, with its room."""
    room = path.relative_to(CORE).parts[0].removesuffix(".py")
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module or ""]
        else:
            continue
        for name in names:
            package = name.partition(".")[0]
            if package not in sys.stdlib_module_names and package != "arcpp":
                yield package, room
