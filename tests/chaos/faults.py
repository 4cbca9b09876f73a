"""The kinds of faults, and how each is made."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from .server import STEP_TIMEOUT_S, ChaosServer

#: Seconds within which each kind must have been noticed.
NOTICED_S = 1.0
STALLED_S = STEP_TIMEOUT_S + 1.0
#: Kinds that show when the step they happen in ends.
AT_THE_END = ("stopped", "not a number", "corrupt link")


@dataclass
class Injected:
    """One fault. at: time.time() when it struck."""

    kind: str
    stages: list[int]
    at: float


def _kill(server: ChaosServer, chance: random.Random) -> Injected:
    stage = chance.randrange(server.stages)
    process = server.stage(stage)
    assert process is not None
    process.kill()
    return Injected("killed", [stage], time.time())


def _kill_all(server: ChaosServer, chance: random.Random) -> Injected:
    stages = list(range(server.stages))
    chance.shuffle(stages)
    processes = [server.stage(stage) for stage in stages]
    for process in processes:
        assert process is not None
        process.kill()
    return Injected("all killed", stages, time.time())


def _stop(server: ChaosServer, chance: random.Random) -> Injected:
    stage = chance.randrange(server.stages)
    process = server.stage(stage)
    assert process is not None
    process.suspend()
    return Injected("stopped", [stage], time.time())


def _twice(server: ChaosServer, chance: random.Random) -> Injected:
    """A stage is killed, and one of those that are being started in its place."""
    first = _kill(server, chance)
    gone = {process.pid for process in [server.stage(0), server.stage(1)] if process is not None}
    deadline = time.monotonic() + 60
    again = chance.randrange(server.stages)
    while time.monotonic() < deadline:
        process = server.stage(again)
        if process is not None and process.pid not in gone:
            process.kill()
            break
        time.sleep(0.01)
    return Injected("killed, and again", [*first.stages, again], first.at)


def _asking(what: str, last: bool = False) -> Callable[[ChaosServer, random.Random], Injected]:
    """A fault the plugin makes, in the next step of a stage; in the last stage if ``last``."""

    def inject(server: ChaosServer, chance: random.Random) -> Injected:
        sends = what in ("not a number", "corrupt link")
        stage = server.stages - 1 if last else chance.randrange(server.stages - sends)
        known = len(server.events("injected"))
        server.ask(what, stage)
        deadline = time.monotonic() + 30
        while len(server.events("injected")) == known:
            if time.monotonic() > deadline:
                server.withdraw()
                raise TimeoutError(f"stage {stage} did not {what}")
            time.sleep(0.002)
        return Injected(what, [stage], server.events("injected")[-1]["at"])

    return inject


def allowed(kind: str) -> float:
    """Seconds within which a fault of ``kind`` must be noticed."""
    return STALLED_S if kind in AT_THE_END else NOTICED_S


KINDS: dict[str, Callable[[ChaosServer, random.Random], Injected]] = {
    "killed": _kill,
    "stopped": _stop,
    "exit in execute": _asking("exit in execute"),
    "exit in sample": _asking("exit in sample", last=True),
    "device lost": _asking("device lost"),
    "out of memory": _asking("out of memory"),
    "not a number": _asking("not a number"),
    "corrupt link": _asking("corrupt link"),
    "all killed": _kill_all,
    "killed, and again": _twice,
}
