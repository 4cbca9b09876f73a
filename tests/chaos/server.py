"""A server that chaos can be made in: the plugin installed, small caches, short deadlines."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from tests.support import leftovers
from tests.support.plugin_packages import write
from tests.support.vllm_server import HYBRID_MODEL, VllmServer

STEP_TIMEOUT_S = 15.0  # the first step of a process takes seconds, more on a busy machine
_PLUGIN = Path(__file__).parent / "plugin" / "arcpp_chaos.py"
_OPTIONS = (
    "--distributed-executor-backend", "arcpp", "--max-model-len", "1024", "--max-num-seqs", "16",
    "--max-num-batched-tokens", "1024", "--enforce-eager", "--dtype", "bfloat16",
    "--kv-cache-memory-bytes", str(96 << 20),
)  # fmt: skip


class ChaosServer:
    """A VllmServer, and the folder through which it is broken and watched."""

    def __init__(
        self,
        *arguments: str,
        stages: int = 2,
        settings: dict[str, Any] | None = None,
        env: dict[str, str] | None = None,
    ) -> None:
        self.stages = stages
        self.folder = Path(tempfile.mkdtemp(prefix="arcpp-chaos-"))
        site = self.folder / write(self.folder, "arcpp_chaos", _PLUGIN.read_text())
        given = {"standby": True, "step_timeout": STEP_TIMEOUT_S, "restart_budget": 1000}
        variables = {
            "CHAOS_FOLDER": str(self.folder),
            "PYTHONPATH": os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")])),
        }
        self.server = VllmServer(
            HYBRID_MODEL,
            *_OPTIONS,
            "--pipeline-parallel-size", str(stages),
            "--additional-config", json.dumps({"arcpp": given | (settings or {})}),
            *arguments,
            env=variables | (env or {}),
        )  # fmt: skip

    def __enter__(self) -> ChaosServer:
        self.server.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        try:
            self.server.__exit__(*error)
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        """What the plugin wrote down so far, oldest first."""
        path = self.folder / "events.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        events = [json.loads(line) for line in lines]
        return [event for event in events if kind in (None, event["event"])]

    def ask(self, what: str, stage: int) -> None:
        """Have ``stage`` do it in one of its next steps."""
        temporary = self.folder / "fault.part"
        temporary.write_text(json.dumps({"what": what, "stage": stage}))
        temporary.rename(self.folder / "fault.json")

    def withdraw(self) -> None:
        """Take back what nobody did."""
        (self.folder / "fault.json").unlink(missing_ok=True)

    def process(self, title: str) -> psutil.Process | None:
        """The live process with this title's end ("Worker_PP1"), or None."""
        for process in leftovers.processes_of(self.server.session):
            try:
                if "".join(process.cmdline()[:1]).endswith(title):
                    return process
            except psutil.Error:
                continue
        return None

    def stage(self, number: int) -> psutil.Process | None:
        """A stage's live process, or None while there is none."""
        return self.process(f"Worker_PP{number}" if self.stages > 1 else "Worker")

    def await_recoveries(self, count: int, seconds: float) -> None:
        """Until so many recoveries are noted, then until /health says 200. Raises TimeoutError."""
        deadline = time.monotonic() + seconds
        while len(self.events("recovered")) < count or not self.server.healthy():
            if time.monotonic() > deadline:
                raise TimeoutError(f"no recovery {count}\n{self.server.text()[-4000:]}")
            if self.server.process.poll() is not None:
                raise RuntimeError(f"the server ended\n{self.server.text()[-6000:]}")
            time.sleep(0.05)

    def held(self) -> dict[str, int]:
        """What the server holds now: bytes, descriptors and threads of the processes that stay,
        segments in shared memory of all."""
        staying = [
            process
            for process in leftovers.processes_of(self.server.session)
            if "Worker" not in "".join(process.cmdline()[:1])
        ]
        used = {"rss": 0, "descriptors": 0, "threads": 0}
        for process in staying:
            try:
                used["rss"] += process.memory_info().rss
                used["descriptors"] += process.num_fds()
                used["threads"] += process.num_threads()
            except psutil.Error:
                continue
        ours = leftovers.shared_memory() - leftovers.used_by_others(self.server.session)
        return used | {"segments": len(ours)}
