"""How long planning takes, in process and from the shell."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace

from arcpp.planner import PlanRequest, make_plan
from tests.support.vllm_server import HYBRID_MODEL

from .plan_pairs import A770, B60, B70, B580, devices, profile_of

_TIMES = 9


def table() -> list[str]:
    """The table as markdown lines: median and slowest of several runs."""
    shallow = profile_of("QWEN35_27B", "int4")
    deep = replace(shallow, layers=shallow.layers * 2)
    request = PlanRequest(kv_cache_dtype="fp8", dtype="float16", max_num_seqs=16)
    two, eight = devices([B70, B580]), devices([B70, B580, A770, B60] * 2)
    shell = [sys.executable, "-m", "arcpp", "plan", str(HYBRID_MODEL)]
    shell += ["--device", "B70=31023MiB", "--device", "B580=11605MiB"]
    rows = {
        "27B, 64 layers on 2 devices, in process": lambda: make_plan(shallow, two, request),
        "128 layers on 8 devices, in process": lambda: make_plan(deep, eight, request),
        "`arcpp plan`, bundled model on 2 devices, from the shell": lambda: subprocess.run(
            shell, check=True, stdout=subprocess.DEVNULL
        ),
        "`python -c pass`, for comparison": lambda: subprocess.run(
            [sys.executable, "-c", "pass"], check=True
        ),
    }
    lines = ["| what | median ms | slowest ms |", "| --- | --- | --- |"]
    for name, run in rows.items():
        seconds = [_seconds(run) for _ in range(_TIMES)]
        median, slowest = statistics.median(seconds) * 1000, max(seconds) * 1000
        lines.append(f"| {name} | {median:.0f} | {slowest:.0f} |")
    return lines


def _seconds(run: Callable[[], object]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin
