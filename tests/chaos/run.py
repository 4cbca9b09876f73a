"""One run: a server, clients, faults by seed, and what came of it."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import openai

from tests.support.generate import Continuation, departures

from .faults import KINDS
from .server import ChaosServer
from .streams import ROUNDING, Crowd, Stream, prompts, reference, worst_token

CLIENTS, TOKENS = 12, 160
_PATIENCE_S = 240.0


def chaos(
    seed: int,
    faults: int,
    stages: int = 2,
    *,
    only: Sequence[str] = (),
    say: Callable[[str], None] = print,
    log: Path | None = None,
) -> dict[str, Any]:
    """Inject ``faults`` faults, of the kinds ``only``; the result is of plain types, see report.

    log: where to keep what the server said.
    """
    with ChaosServer(stages=stages) as server:
        result = chaos_in(server, seed, faults, only=only, say=say)
        if log is not None:
            log.write_text(server.server.text())
    return result | {
        "left": asdict(server.server.left) if server.server.left is not None else {},
    }


def chaos_in(
    server: ChaosServer,
    seed: int,
    faults: int,
    *,
    only: Sequence[str] = (),
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """The same in a server that runs already, but for what it leaves behind."""
    chance = random.Random(seed)
    wanted = list(only or KINDS)
    kinds = [name for _ in range(faults // len(wanted) + 1) for name in wanted][:faults]
    chance.shuffle(kinds)
    client = openai.OpenAI(base_url=server.server.url, api_key="none", timeout=600)
    expected = {
        prompt: reference(client, prompt, TOKENS + 7 * number)
        for number, prompt in enumerate(prompts(CLIENTS))
    }
    at_rest, after_first, injected = server.held(), {}, []
    with Crowd(server.server.url, CLIENTS, TOKENS) as crowd:
        for number, kind in enumerate(kinds, 1):
            time.sleep(chance.uniform(0.3, 3.0))
            injected.append(_one(server, kind, chance))
            after_first = after_first or server.held()
            say(f"{number}/{faults} {_line(injected[-1])}")
    return {
        "seed": seed,
        "stages": server.stages,
        "faults": injected,
        "streams": _judged(client, expected, crowd.finished) | {"stuck": crowd.stuck},
        "held": [at_rest, after_first, server.held()],
        "left": {},
    }


def _one(server: ChaosServer, kind: str, chance: random.Random) -> dict[str, Any]:
    """One fault, until the server is well again."""
    before = len(server.events("recovered"))
    logged = len(server.server.text())
    made = KINDS[kind](server, chance)
    server.await_recoveries(before + 1, _PATIENCE_S)
    events = server.events()
    noticed = next(e for e in events if e["event"] == "fault" and e["at"] >= made.at - 0.05)
    recovered = server.events("recovered")[-1]
    return {
        "kind": kind,
        "stages": made.stages,
        "said": noticed["kind"],
        "detect_s": max(0.0, noticed["at"] - made.at),
        "recover_s": recovered["at"] - noticed["at"],
        "phases": recovered["seconds"],
        "prefill_s": _prefill(server, logged) if chance.random() < 0.7 else None,
    }


def _prefill(server: ChaosServer, since: int) -> float | None:
    """Seconds until every request of the fault had a new token; None if there were none."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        found = re.search(r"recovery: prefill ([0-9.]+) s", server.server.text()[since:])
        if found is not None:
            return float(found[1])
        time.sleep(0.05)
    return None


def _judged(
    client: openai.OpenAI, expected: dict[str, Continuation], finished: list[Stream]
) -> dict[str, Any]:
    errors = [stream.error for stream in finished if stream.error is not None]
    whole = [stream for stream in finished if stream.error is None]
    found = [Continuation(stream.ids, []) for stream in whole]
    rounded, wrong = departures([expected[stream.prompt] for stream in whole], found, ROUNDING)
    return {
        "count": len(finished),
        "errors": errors,
        "departed": rounded,
        "wrong": wrong,
        "worst": max((worst_token(client, stream) for stream in whole), default=0.0),
    }


def _line(fault: dict[str, Any]) -> str:
    return (
        f"{fault['kind']} (stage {fault['stages']}): {fault['said']} after "
        f"{1000 * fault['detect_s']:.0f} ms, well again {fault['recover_s']:.1f} s later"
    )
