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
    package = module.replace("_", "-")
    site = folder / package
    info = site / f"{module}-{version}.dist-info"
    info.mkdir(parents=True)
    (site / f"{module}.py").write_text(source)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(f"[arcpp]\n{entry or module} = {module}\n")
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.delitem(sys.modules, module, raising=False)
    return package
