"""``make chaos [SEED=n] [FAULTS=n] [STAGES=n]``: faults at random while twelve clients stream.

Results of a seed are kept in .chaos/, so that runs of under an hour add up; ``make chaos-report``
writes what all of them say to docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from tests.bench.__main__ import PAGE, replaced, section

from . import report
from .faults import KINDS
from .run import chaos

_USUAL = 2  # stages, as the Makefile says
FOLDER = Path(__file__).resolve().parents[2] / ".chaos"


def main(arguments: list[str]) -> int:
    """Exit code: 0 when no request failed and no token was wrong."""
    parser = argparse.ArgumentParser(prog="tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--faults", type=int, default=20)
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--only", action="append", choices=list(KINDS), default=[])
    parser.add_argument("--report", action="store_true", help="write docs/benchmarks.md")
    given = parser.parse_args(arguments)
    FOLDER.mkdir(exist_ok=True)
    if given.report:
        _write_page([json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))])
        return 0
    console = Console()
    name = f"{given.stages}-{given.seed}"
    log = FOLDER / f"{name}.log"
    result = chaos(
        given.seed, given.faults, given.stages, only=given.only, say=console.print, log=log
    )
    if not given.only:
        (FOLDER / f"{name}.json").write_text(json.dumps(result, indent=1))
    console.print("\n".join(report.table([result])))
    return 0 if report.good(result) else 1


def _write_page(results: list[dict[str, Any]]) -> None:
    """A section for each number of stages; those without a run here stay as they are."""
    for stages in sorted({result["stages"] for result in results}):
        lines = report.table([result for result in results if result["stages"] == stages])
        print("\n".join(lines))
        name = "chaos" if stages == _USUAL else f"chaos, {stages} stages"
        command = f"make chaos SEED=n FAULTS=20 STAGES={stages}, make chaos-report"
        found = section(name, report.__doc__ or "", lines, command)
        text = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(replaced(text, name.replace(", ", "-"), found), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
