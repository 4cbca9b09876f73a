"""A decode step of a small hybrid model on two stages, beside its stages' own times.

Gated DeltaNet and attention layers, 3 to 1, random weights, cut by arcpp's plan for two unequal
devices; one process a stage, the boundary over the ring, recurrent state in slots that were used
before. The tokens are those of one process in which every request has state of its own (checked:
all, greedy). Medians of the steps in which every slot decodes one token; a step is what the first
stage waits for a token, its stages' times are from their input to their output, at rest. Hop:
from one output to the next stage's input; back: the tokens' way to the first stage. One process
ran before the two, not beside them: other work on the machine shows in the columns, and hardly in
the ratio, which is of each step.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.support.link_peers import Pair
    from tests.support.pipeline import Found, Job

REQUESTS, SLOTS = 10, 4
DTYPES = ("float32", "bfloat16")


class TokensDiffer(Exception):
    """Two stages did not give the tokens of one process."""


def measure(
    devices: tuple[str, str], requests: int = REQUESTS, link: str = "ring"
) -> dict[str, Any]:
    """Everything, in two processes; the object of ``--json``. Raises TokensDiffer."""
    import torch

    from arcpp._version import __version__
    from arcpp.bench.report import processor
    from tests.support.hybrid_model import Sizes
    from tests.support.link_peers import Pair
    from tests.support.pipeline import planned_job, random_requests

    sizes, began = Sizes(), time.monotonic()
    runs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="arcpp-pipeline-") as made:
        folder = Path(made)
        with Pair(folder / "pair") as pair:
            for dtype in DTYPES:
                job, plan = planned_job(
                    sizes, dtype, devices, requests=random_requests(requests, sizes), slots=SLOTS,
                    folder=folder,
                )  # fmt: skip
                runs.append({**_run(pair, job, link), "plan": plan.to_json()})
    options = [f"--device {device}" for device in devices]
    options += [f"--requests {requests}"] if requests != REQUESTS else []
    options += [f"--link {link}"] if link != "ring" else []
    return {
        "arcpp": __version__,
        "machine": {"processor": processor(), "cores": _cores()},
        "versions": {"python": platform.python_version(), "torch": str(torch.__version__)},
        "command": " ".join(["python -m tests.bench.pipeline", *options]),
        "devices": [
            {"name": device, "card": card}
            for device, card in zip(devices, runs[0]["cards"], strict=True)
        ],
        "model": vars(sizes),
        "seconds": time.monotonic() - began,
        "runs": runs,
    }


def _run(pair: Pair, job: Job, link: str) -> dict[str, Any]:
    from arcpp.settings import Settings
    from tests.support.pipeline import run_both, run_one, schedule

    alone = run_one(pair, job)
    first, last = run_both(pair, job, Settings(link=link))
    wrong = [r for r, text in enumerate(first.texts) if text != alone.texts[r]]
    if wrong:
        raise TokensDiffer(f"{job.dtype} on {job.devices}: requests {wrong} have other tokens")
    steps = list(schedule(job))
    full = [
        at
        for at, turns in enumerate(steps)
        if len(turns) == job.pool.slots and all(turn.count == 1 for turn in turns)
    ]
    return {
        "dtype": job.dtype,
        "cards": [first.card, last.card],
        "partition": [job.cut, job.sizes.layers - job.cut],
        "weights_bytes": [sum(first.layer_bytes), sum(last.layer_bytes)],
        "slots": job.pool.slots,
        "requests": len(job.requests),
        "tokens": sum(len(text) for text in first.texts),
        "tokens_equal": True,
        "steps": len(steps),
        "steps_measured": len(full),
        "links": first.links,
        **figures(alone, first, last, full),
    }


def figures(alone: Found, first: Found, last: Found, steps: Sequence[int]) -> dict[str, Any]:
    """Medians over ``steps``, in seconds; ratios are medians of each step's own ratio."""
    sums = [_took(first, at) + _took(last, at) for at in steps]
    whole = [first.came[at] - first.began[at] for at in steps]
    median: Callable[[list[float]], float] = statistics.median
    return {
        "step_s": median(whole),
        "stages_s": [median([_took(stage, at) for at in steps]) for stage in (first, last)],
        "sum_of_stages_s": median(sums),
        "hop_s": median([last.began[at] - first.ended[at] for at in steps]),
        "back_s": median([first.came[at] - last.ended[at] for at in steps]),
        "step_over_sum": median([step / each for step, each in zip(whole, sums, strict=True)]),
        "one_process_step_s": median([_took(alone, at) for at in steps]),
    }


def _took(found: Found, step: int) -> float:
    return found.ended[step] - found.began[step]


def _cores() -> int:
    import os

    return len(os.sched_getaffinity(0))


def table() -> list[str]:
    """Two stages on the processor, as markdown lines."""
    return rows(measure(("cpu", "cpu")))


def rows(measured: dict[str, Any]) -> list[str]:
    """Markdown lines of what was measured."""
    runs = measured["runs"]
    head = ("weights", "layers", "step ms", "first stage ms", "last stage ms", "hop us", "back us")
    lines = [
        f"| {' | '.join((*head, 'step / stages', 'one process ms'))} |",
        f"|{' --- |' * (len(head) + 2)}",
    ]
    for run in runs:
        cells = (
            run["dtype"],
            ",".join(str(count) for count in run["partition"]),
            *(f"{seconds * 1e3:.2f}" for seconds in (run["step_s"], *run["stages_s"])),
            *(f"{run[name] * 1e6:.0f}" for name in ("hop_s", "back_s")),
            f"{run['step_over_sum']:.3f}",
            f"{run['one_process_step_s'] * 1e3:.2f}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    run, link = runs[0], runs[0]["links"]["boundary"]
    return [
        *lines,
        "",
        f"{run['requests']} requests over {run['slots']} slots, {run['tokens']} tokens, "
        f"{run['steps_measured']} of {run['steps']} steps measured; all tokens equal. "
        f"Boundary: {link['kind']}, pages {link['pinning']}.",
        *link["notes"],
    ]


def lines(measured: dict[str, Any]) -> list[str]:
    """A section's lines for a machine with cards, without its heading."""
    first, second = measured["devices"]
    machine, versions = measured["machine"], measured["versions"]
    return [
        f"The same on {first['name']} ({first['card']}) and {second['name']} ({second['card']}); "
        f"one process on {first['name']}.",
        "",
        *rows(measured),
        "",
        f"Measured on {machine['processor']}, {machine['cores']} cores; Python "
        f"{versions['python']}, arcpp {measured['arcpp']}, torch {versions['torch']}; "
        f"`{measured['command']}`.",
    ]


def write_section(file: Path) -> None:
    """Put what ``--json`` wrote on another machine into docs/benchmarks.md."""
    from .__main__ import PAGE, replaced

    measured = json.loads(file.read_text(encoding="utf-8"))
    cards = len({device["name"] for device in measured["devices"]})
    name = "one card" if cards == 1 else "two cards"
    text = "\n".join([f"## pipeline, {name}", "", *lines(measured), ""])
    key = f"pipeline-{name.replace(' ', '-')}"
    PAGE.write_text(replaced(PAGE.read_text(encoding="utf-8"), key, text), encoding="utf-8")


def main(arguments: Sequence[str]) -> int:
    """Measure and print, or write a section; exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.pipeline")
    parser.add_argument("--device", action="append", help="of a stage; twice, or once for both")
    parser.add_argument("--requests", type=int, default=REQUESTS)
    parser.add_argument("--link", choices=("ring", "p2p", "gloo"), default="ring")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to put the figures too")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put FILE into the page instead")
    asked = parser.parse_args(arguments)
    if asked.write is not None:
        write_section(asked.write)
        return 0
    devices = asked.device or ["cpu"]
    if len(devices) > 2 or asked.requests < SLOTS:
        parser.error(f"at most two devices, and at least {SLOTS} requests")
    try:
        measured = measure((devices[0], devices[-1]), asked.requests, asked.link)
    except TokensDiffer as error:
        print(f"pipeline: {error}", file=sys.stderr)
        return 1
    print("\n".join(lines(measured)))
    if asked.json is not None:
        asked.json.write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
