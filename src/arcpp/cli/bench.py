"""``arcpp bench``: measure on this machine."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from arcpp.bench.request import HopRequest
from arcpp.probe import FoundDevice
from arcpp.probe.machine import this_machine


@click.group("bench")
def bench_command() -> None:
    """Measure how fast a boundary moves on this machine."""


@bench_command.command("hop")
@click.option(
    "--device",
    "devices",
    multiple=True,
    metavar="NAME",
    help="Of one end (xpu:0, cuda:1, cpu); twice for both; default: the first two cards.",
)
@click.option(
    "--size",
    "sizes",
    multiple=True,
    metavar="SIZE",
    help="Of a payload; repeat; default: 20KiB, 320KiB, 5MiB, 40MiB.",
)
@click.option(
    "--way",
    "ways",
    multiple=True,
    metavar="NAME",
    help="raw, ring, verified, p2p, gloo, nccl or xccl; repeat; default: all but p2p.",
)
@click.option(
    "--rounds", type=int, default=5, show_default=True, help="Of each; the median counts."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def hop_command(
    devices: tuple[str, ...],
    sizes: tuple[str, ...],
    ways: tuple[str, ...],
    rounds: int,
    as_json: bool,
) -> int:
    """Measure one hop between two processes, against raw copies and gloo in the same run.

    Both ends on one device where there is only one. Raw copies are always measured: from the
    device to pinned host memory and back, alone; on the CPU, two copies in host memory. Takes about
    a minute and needs torch. Exit code 0: measured; 1: not, one line says why.
    """
    from arcpp.bench import hop_request, measure_hops
    from arcpp.bench.report import hop_json, hop_text

    request = hop_request(devices, sizes, ways, rounds, _found)
    with _shown(request) as progress:
        report = measure_hops(request, progress)
    click.echo(json.dumps(hop_json(report)) if as_json else hop_text(report))
    return 0


def _found() -> tuple[FoundDevice, ...]:
    return this_machine().devices


@contextmanager
def _shown(request: HopRequest) -> Iterator[Callable[[int, int], None]]:
    """A bar on standard error while it is measured, where that is a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    between = " and ".join(request.devices)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(f"hops between {between}", total=None)
        yield lambda done, of: bar.update(task, completed=done, total=of)
