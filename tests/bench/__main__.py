"""``make bench [SECTION ...]``: measure and rewrite those sections of docs/benchmarks.md."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

from arcpp.bench.report import processor

from . import (
    hop_speed,
    memory_curve,
    openvino_speed,
    pipeline,
    plan_pairs,
    plan_speed,
    recovery,
    state_cost,
    state_guard,
    vllm_speed,
)

PAGE = Path(__file__).resolve().parents[2] / "docs" / "benchmarks.md"

# Name -> (what it says, the measurement). A section is rewritten whole, the others stay.
SECTIONS: dict[str, tuple[str, Callable[[], list[str]]]] = {
    "hop": (hop_speed.__doc__ or "", hop_speed.table),
    "memory-curve": (memory_curve.__doc__ or "", memory_curve.table),
    "openvino": (openvino_speed.__doc__ or "", openvino_speed.table),
    "pipeline": (pipeline.__doc__ or "", pipeline.table),
    "plan-pairs": (plan_pairs.__doc__ or "", plan_pairs.table),
    "plan-speed": (plan_speed.__doc__ or "", plan_speed.table),
    "recovery": (recovery.__doc__ or "", recovery.table),
    "state": (state_cost.__doc__ or "", state_cost.table),
    "state-guard": (state_guard.__doc__ or "", state_guard.table),
    "vllm-speed": (vllm_speed.__doc__ or "", vllm_speed.table),
}


def main(names: list[str]) -> int:
    """Run the named sections, or all; exit code."""
    unknown = [name for name in names if name not in SECTIONS]
    if unknown:
        print(f"bench: {unknown[0]!r} is not one of {', '.join(SECTIONS)}", file=sys.stderr)
        return 1
    text = PAGE.read_text(encoding="utf-8")
    for name in names or SECTIONS:
        says, measure = SECTIONS[name]
        print(f"measuring {name}", flush=True)
        lines = measure()
        print("\n".join(lines), flush=True)
        text = replaced(text, name, section(name, says, lines))
        PAGE.write_text(text, encoding="utf-8")
    print(f"wrote {PAGE.name}")
    return 0


def section(name: str, says: str, lines: list[str], command: str | None = None) -> str:
    """A section of the page: heading, what it is, the table, where it was measured and how."""
    measured = machine(command or f"make bench SECTIONS={name}")
    return "\n".join([f"## {name}", "", says.strip(), "", *lines, "", measured, ""])


def machine(command: str) -> str:
    """Machine, versions and command, in one line."""
    versions = [f"Python {platform.python_version()}"]
    for package in ("arcpp", "vllm", "torch", "openvino"):
        try:
            versions.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            continue
    return (
        f"Measured on {processor()}, {len(os.sched_getaffinity(0))} cores; {', '.join(versions)}; "
        f"`{command}`."
    )


def replaced(page: str, name: str, text: str) -> str:
    """``page`` with the section ``name`` between its markers replaced, or appended."""
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    block = f"{begin}\n{text}{end}"
    if begin not in page:
        return f"{page.rstrip()}\n\n{block}\n"
    before, _, rest = page.partition(begin)
    return before + block + rest.partition(end)[2]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
