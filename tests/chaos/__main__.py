"""``make chaos [SEED=n] [FAULTS=n] [STAGES=n]``: faults at random while twelve clients stream.

Results of a seed are kept in .chaos/, so that runs of under an hour add up; ``make chaos-report``
writes what all of them say to docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from rich.console import Console

from tests.bench.__main__ import PAGE, replaced, section

from . import report
from .faults import KINDS
from .run import chaos

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
        results = [json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))]
        lines = report.table(results)
        print("\n".join(lines))
        text = PAGE.read_text(encoding="utf-8")
        command = "make chaos SEED=n FAULTS=20, make chaos-report"
        found = section("chaos", report.__doc__ or "", lines, command)
        PAGE.write_text(replaced(text, "chaos", found), encoding="utf-8")
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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
