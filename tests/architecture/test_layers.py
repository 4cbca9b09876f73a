"""The layers drawn in pyproject.toml hold, and each of those contracts can be broken."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
CONTRACTS = [contract["name"] for contract in SETTINGS["contracts"]]

# What each contract is there to keep out: a line that somebody might write one day.
BREACHES = {
    "src/arcpp/units.py": "from .planner import make_plan",
    "src/arcpp/new_room.py": "",
    "src/arcpp/planner.py": "from .link import Frame",
    "src/arcpp/partition.py": "import torch.distributed",
    "src/arcpp/hookspecs.py": "from .solver import Need",
    "adapters/arcpp_openvino/__init__.py": "import arcpp_ovms",
    "adapters/arcpp_vllm/plugin.py": "import arcpp_openvino",
    "adapters/arcpp_vllm/stage_plan.py": "from arcpp.solver import Need",
}


def _lint(folder: Path) -> subprocess.CompletedProcess[str]:
    sources = os.pathsep.join(str(folder / part) for part in ("src", "adapters"))
    return subprocess.run(
        [
            sys.executable,
            "-c",
            "from importlinter.cli import lint_imports_command; lint_imports_command()",
            "--no-cache",
        ],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": sources, "COLUMNS": "200", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_contracts_hold() -> None:
    done = _lint(ROOT)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    for name in CONTRACTS:
        assert f"{name} KEPT" in done.stdout


def test_every_contract_can_be_broken(tmp_path: Path) -> None:
    for part in ("src", "adapters"):
        shutil.copytree(ROOT / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for name, line in BREACHES.items():
        with (tmp_path / name).open("a") as file:
            file.write(f"\n{line}\n")
    done = _lint(tmp_path)
    assert done.returncode != 0
    for name in CONTRACTS:
        assert f"{name} BROKEN" in done.stdout, done.stdout[-6000:]
    assert "new_room" in done.stdout, "a room that stands nowhere was not noticed"
