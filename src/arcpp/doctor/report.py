"""A doctor's report: tables for people, one object for programs; both redacted."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from arcpp._version import __version__
from arcpp.probe import FoundDevice
from arcpp.probe.choose import name_of
from arcpp.units import format_gib

from . import links
from .facts import Facts
from .finding import Finding
from .redact import Redactor

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

WIDTH = 100


def report_json(
    facts: Facts, findings: Sequence[Finding], code: int, redactor: Redactor
) -> dict[str, Any]:
    """The object of ``arcpp doctor --json``; sizes in bytes, bandwidths in 10**9 bytes/s."""
    result: dict[str, Any] = {
        "arcpp": __version__,
        "exit_code": code,
        "devices": [device.to_json() for device in facts.devices],
        "sources": {
            name: {"status": outcome.status, "detail": outcome.detail}
            for name, outcome in facts.sources.items()
        },
        "cards": [
            {"pci": card.pci, "name": card.name, "driver": card.driver, "display": card.display}
            for card in facts.cards
        ],
        "system": {
            "python": facts.python,
            "kernel": facts.kernel,
            "wsl": facts.wsl,
            "render_nodes": dict(facts.nodes),
            "libraries": dict(facts.libraries),
            "driver_packages": dict(facts.driver_packages),
            "shm_total_bytes": facts.shm_total,
            "shm_free_bytes": facts.shm_free,
            "memlock_bytes": facts.memlock,
            "variables": dict(facts.variables),
        },
        "packages": dict(facts.packages),
        "torch_build": dict(facts.build),
        "vllm_adapter": None if facts.adapter is None else dict(facts.adapter.data),
        "link": links.link_in_words(facts.settings),
        "copies": [
            {
                **path.to_json(),
                "verdict": links.verdict(path),
                "arcpp_does": links.what_arcpp_does(path, facts.settings),
            }
            for check in facts.copies
            for path in check.paths
        ],
        "findings": [finding.to_json() for finding in findings],
    }
    redacted: dict[str, Any] = redactor.value(result)
    return redacted


def report_text(facts: Facts, findings: Sequence[Finding], redactor: Redactor) -> str:
    """The same for people: devices, software, copies, then what to do."""
    from rich.console import Console

    buffer = io.StringIO()
    console = Console(
        file=buffer, width=WIDTH, color_system=None, force_terminal=False, highlight=False
    )
    console.print(f"arcpp {__version__} doctor", markup=False)
    rows = _Rows(redactor)
    _section(console, "Devices (GiB)", _devices(facts.devices, rows))
    _section(console, "Software", _software(facts, rows))
    _section(console, "Copies, content checked, by way of host memory", _copies(facts, rows))
    console.print(f"boundaries: {links.link_in_words(facts.settings)}", markup=False)
    _section(console, "Findings", _findings(findings, rows))
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines())


def _section(console: Console, title: str, table: Table) -> None:
    console.print(f"\n{title}", markup=False)
    if table.row_count:
        console.print(table)
    else:
        console.print("none", markup=False)


def _table(*columns: str, right: Sequence[str] = ()) -> Table:
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for name in columns:
        table.add_column(name, justify="right" if name in right else "left", overflow="fold")
    return table


class _Rows:
    """Adds rows whose cells are redacted before a table may break them into lines."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor

    def add(self, table: Table, *cells: str) -> None:
        """One row; brackets in cells are no markup."""
        from rich.text import Text

        table.add_row(*(Text(self._redactor.text(cell)) for cell in cells))


def _devices(devices: Sequence[FoundDevice], rows: _Rows) -> Table:
    table = _table("device", "PCI", "card", "source", "total", "free", right=("total", "free"))
    for device in devices:
        memory, verdict = device.verdict.memory, device.verdict
        rows.add(
            table,
            " ".join(_names(device)),
            device.pci or "?",
            f"{device.name} ({device.driver or 'no driver seen'})"
            f"{', integrated' if device.integrated else ''}{', monitor' if device.display else ''}",
            memory.source if memory is not None else "none can be believed",
            format_gib(memory.total) if memory is not None else "-",
            format_gib(memory.free) if memory is not None and verdict.free_known else "?",
        )
        for reading in verdict.accepted:
            free = "-" if reading.free is None else format_gib(reading.free)
            rows.add(table, "", "", "", f"  {reading.source}", format_gib(reading.total or 0), free)
        for rejected in verdict.rejected:
            rows.add(
                table, "", "", f"  not used: {rejected.reason}", f"  {rejected.reading.source}"
            )
    return table


def _names(device: FoundDevice) -> list[str]:
    """What hosts call ``device``, for vLLM first."""
    numbers = [device.numbers.get("torch"), device.numbers.get("openvino")]
    return list(dict.fromkeys(filter(None, [name_of(device, None), *numbers])))


def _software(facts: Facts, rows: _Rows) -> Table:
    table = _table("what", "found")
    rows.add(table, "Python, kernel", f"{facts.python}, {facts.kernel or '?'}")
    for name, version in facts.packages.items():
        rows.add(table, name, version)
    if facts.build:
        kinds = [kind for kind in ("xpu", "cuda", "hip") if facts.build.get(kind)]
        rows.add(table, "torch is built for", ", ".join(kinds) or "the CPU only")
    if facts.adapter is not None:
        missing = facts.adapter.data.get("missing")
        says = "all there" if missing == [] else facts.adapter.detail or f"missing: {missing}"
        rows.add(table, "vLLM internals arcpp reaches", says)
    for name, version in facts.driver_packages.items():
        rows.add(table, name, version)
    there = [name for name, found in facts.libraries.items() if found]
    rows.add(table, "runtime libraries", ", ".join(there) or "none in the usual folders")
    rows.add(table, "render nodes", ", ".join(facts.nodes) or "none")
    total = "not there" if facts.shm_total is None else f"{format_gib(facts.shm_total)} GiB"
    memlock = "unlimited" if facts.memlock is None else f"{format_gib(facts.memlock)} GiB"
    rows.add(table, "shared memory, memlock", f"{total}, {memlock}")
    for name, value in facts.variables.items():
        rows.add(table, name, value)
    return table


def _copies(facts: Facts, rows: _Rows) -> Table:
    table = _table(
        "path", "verdict", "sizes right", "to device GB/s", "to host GB/s",
        right=("sizes right", "to device GB/s", "to host GB/s"),
    )  # fmt: skip
    for check in facts.copies:
        if not check.paths:
            rows.add(table, check.device, check.outcome.detail, "-", "-", "-")
        for path in check.paths:
            good = path.sizes - len({*path.wrong, *path.errors})
            rates = [
                "-" if rate is None else f"{rate:.2f}"
                for rate in (path.to_device_gb_s, path.to_host_gb_s)
            ]
            way = " > host > ".join([*path.path, ""]).rstrip("> ")
            way += " (host to host only)" if path.path[0].startswith("cpu") else ""
            rows.add(table, way, links.verdict(path), f"{good} of {path.sizes}", *rates)
    return table


def _findings(findings: Sequence[Finding], rows: _Rows) -> Table:
    table = _table("level", "subject", "what, and what to do")
    for finding in findings:
        do = f"\n-> {finding.do}" if finding.do else ""
        rows.add(table, finding.level, finding.subject, finding.says + do)
    return table
