"""What guarding recurrent state costs in real vLLM steps.

The bundled model in bfloat16 on two CPU stages, 64 requests of 48 tokens of prompt and 64 of
answer, eight at a time. Each stage adds up its steps and, within them, zeroing the state blocks
of requests that begin (`zero_state`) and looking at every state in use (`state_check_every`, here
1: at every step). Shares of the steps' time, of the stage where they are larger; all in one run.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai

from tests.support.plugin_packages import write
from tests.support.vllm_server import HYBRID_MODEL, VllmServer

_REQUESTS, _TOKENS = 64, 64
_METER = """
import json, os, time
from arcpp import hookimpl

TOTAL = {"step": 0.0, "zero": 0.0, "look": 0.0, "steps": 0}

def timed(owner, name, what, stage=None):
    original = getattr(owner, name)
    def call(*given):
        begun = time.perf_counter()
        try:
            return original(*given)
        finally:
            TOTAL[what] += time.perf_counter() - begun
            if stage is not None:
                TOTAL["steps"] += 1
                path = f"{os.environ['METER_FOLDER']}/stage-{stage}.json"
                with open(path + ".part", "w") as file:
                    json.dump(TOTAL, file)
                os.replace(path + ".part", path)
    setattr(owner, name, call)

@hookimpl
def arcpp_plan_made(plan, stage):
    if stage is None:
        return
    from arcpp_vllm.state_guard import StateGuard
    from arcpp_vllm.recovery.finite import FiniteCheck
    from vllm.v1.worker.gpu_worker import Worker
    timed(StateGuard, "before_step", "zero")
    timed(StateGuard, "after_step", "look")
    timed(Worker, "execute_model", "step", stage)
"""


def table() -> list[str]:
    """The section's table."""
    folder = Path(tempfile.mkdtemp(prefix="arcpp-meter-"))
    try:
        write(folder, "arcpp_meter", _METER)
        stages = _measured(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    lines = ["| | share of the steps' time |", "| --- | ---: |"]
    for name, what in (("zeroing", "zero"), ("looking at every step", "look")):
        share = max(stage[what] / stage["step"] for stage in stages)
        lines.append(f"| {name} | {100 * share:.2f} % |")
    share = max(stage["look"] / stage["step"] for stage in stages)
    lines.append(f"| looking at every 100th step, the default | {share:.2f} % |")
    steps, step = stages[0]["steps"], stages[0]["step"]
    return [*lines, "", f"{steps:.0f} steps of {1000 * step / steps:.1f} ms on the first stage."]


def _measured(folder: Path) -> list[dict[str, float]]:
    path = os.pathsep.join(
        filter(None, [str(folder / "arcpp-meter"), os.environ.get("PYTHONPATH")])
    )
    settings = {"arcpp": {"state_check_every": 1}}
    options = (
        "--distributed-executor-backend", "arcpp", "--pipeline-parallel-size", "2",
        "--max-model-len", "1024", "--max-num-seqs", "8", "--max-num-batched-tokens", "256",
        "--enforce-eager", "--dtype", "bfloat16", "--kv-cache-memory-bytes", str(64 << 20),
        "--additional-config", json.dumps(settings),
    )  # fmt: skip
    env = {"PYTHONPATH": path, "METER_FOLDER": str(folder)}
    with VllmServer(HYBRID_MODEL, *options, env=env) as server:
        client = openai.OpenAI(base_url=server.url, api_key="none", timeout=600)

        def ask(number: int) -> None:
            prompt = [(7 * i + 13 * number) % 4000 + 64 for i in range(48)]
            client.completions.create(
                model="model", prompt=prompt, max_tokens=_TOKENS, temperature=0,
                extra_body={"ignore_eos": True},
            )  # fmt: skip

        with ThreadPoolExecutor(8) as clients:
            list(clients.map(ask, range(_REQUESTS)))
        return [json.loads((folder / f"stage-{stage}.json").read_text()) for stage in range(2)]
