"""Seconds from a killed stage until every stream has a new token, and where they go.

The bundled model in bfloat16 on two CPU stages, four streams, one stage killed with SIGKILL, in
turns. Cold: each stage is a new process that imports everything; standby: it is forked from a
process that has (setting `standby`). Medians of the kills of one server each. detect: until the
engine knows; stop: until the old stages are gone; start: until the new ones have planned; load:
weights, link; warm: caches; requests: replay; prefill: until each stream has its next token.
"""

from __future__ import annotations

import re
import statistics
import threading
import time

import openai

from tests.chaos.server import ChaosServer
from tests.chaos.streams import prompts, run

_KILLS, _STREAMS = 4, 4
_PHASES = ("detect", "stop", "start", "load", "warm", "requests", "prefill")


def table() -> list[str]:
    """The section's table."""
    found = {name: _measure(standby=on) for name, on in (("cold", False), ("standby", True))}
    lines = [f"| | {' | '.join(_PHASES)} | all |", "| --- " + "| ---: " * (len(_PHASES) + 1) + "|"]
    for name, kills in found.items():
        cells = [f"{statistics.median(kill[phase] for kill in kills):.2f}" for phase in _PHASES]
        total = statistics.median(sum(kill.values()) for kill in kills)
        lines.append(f"| {name} | {' | '.join(cells)} | **{total:.1f}** |")
    cold, warm = (
        statistics.median(sum(kill.values()) for kill in found[name])
        for name in ("cold", "standby")
    )
    return [*lines, "", f"Standby recovers {cold / warm:.1f} times as fast."]


def _measure(*, standby: bool) -> list[dict[str, float]]:
    with ChaosServer(settings={"standby": standby}) as server:
        client = openai.OpenAI(base_url=server.server.url, api_key="none", timeout=600)
        run(client, prompts(1)[0], 50)  # the first steps of a process are slow
        return [_kill(server, client, stage=kill % 2) for kill in range(_KILLS)]


def _kill(server: ChaosServer, client: openai.OpenAI, stage: int) -> dict[str, float]:
    clients = [
        threading.Thread(target=run, args=(client, prompt, 300)) for prompt in prompts(_STREAMS)
    ]
    for one in clients:
        one.start()
    time.sleep(1.0)
    known, logged = len(server.events("recovered")), len(server.server.text())
    process = server.stage(stage)
    if process is None:
        raise RuntimeError(f"there is no stage {stage}")
    at = time.time()
    process.kill()
    server.await_recoveries(known + 1, 300)
    for one in clients:
        one.join()
    (fault,) = [event for event in server.events("fault") if event["at"] >= at]
    seconds: dict[str, float] = dict(server.events("recovered")[-1]["seconds"])
    prefill = re.search(r"recovery: prefill ([0-9.]+) s", server.server.text()[logged:])
    seconds |= {"detect": fault["at"] - at, "prefill": float(prefill[1]) if prefill else 0.0}
    return {phase: seconds[phase] for phase in _PHASES}
