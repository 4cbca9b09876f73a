"""Installed plugin packages, as pip leaves them: a module and the metadata that names it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest


def install(
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    module: str,
    source: str,
    *,
    entry: str | None = None,
    version: str = "1.2.3",
) -> str:
    """Put ``module`` with ``source`` on sys.path as a plugin; returns its package's name.

    entry: name of the entry point, by default the module's.
    """
    package = write(folder, module, source, entry=entry, version=version)
    monkeypatch.syspath_prepend(str(folder / package))
    monkeypatch.delitem(sys.modules, module, raising=False)
    return package


def write(
    folder: Path,
    module: str,
    source: str,
    *,
    entry: str | None = None,
    version: str = "1.2.3",
    group: str = "arcpp",
    function: str | None = None,
) -> str:
    """Write the same into ``folder``/package, for other processes' PYTHONPATH; its package.

    group, function: of the entry point, where it is not one of arcpp's, which name modules.
    """
    package = module.replace("_", "-")
    site = folder / package
    info = site / f"{module}-{version}.dist-info"
    info.mkdir(parents=True)
    (site / f"{module}.py").write_text(source)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    target = module if function is None else f"{module}:{function}"
    (info / "entry_points.txt").write_text(f"[{group}]\n{entry or module} = {target}\n")
    return package
