"""Whatever part of a server dies, and however: no process, segment, socket or file is left."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
import urllib.request
from collections.abc import Callable
from http.client import HTTPException

import psutil
import pytest

from tests.adapters.conftest import SMALL
from tests.support import leftovers
from tests.support.vllm_server import HYBRID_MODEL, VllmServer

pytestmark = pytest.mark.vllm


# A lost stage ends the engine, as in stock vLLM; test_vllm_recovery has what happens otherwise.
UNSUPERVISED = ("--additional-config", '{"arcpp": {"restart_budget": 0}}')


def _titled(server: VllmServer, title: str) -> psutil.Process:
    found = leftovers.processes_of(server.session)
    (process,) = (p for p in found if "".join(p.cmdline()[:1]).endswith(title))
    return process


def _kill_main(server: VllmServer) -> None:
    server.process.kill()


def _kill_engine(server: VllmServer) -> None:
    _titled(server, "EngineCore").kill()


def _kill_first_stage(server: VllmServer) -> None:
    _titled(server, "Worker_PP0").kill()


def _ask_for_long(server: VllmServer) -> None:
    """Have a request answered that takes long, and return when it is under way."""
    body = b'{"model":"model","prompt":[65,66,67],"max_tokens":900,"ignore_eos":true}'
    request = urllib.request.Request(
        f"{server.url}/completions", data=body, headers={"Content-Type": "application/json"}
    )

    def ask() -> None:
        with contextlib.suppress(OSError, HTTPException):  # it is going to be cut off
            urllib.request.urlopen(request, timeout=60).read()

    threading.Thread(target=ask, daemon=True).start()
    time.sleep(1.0)


def _kill_last_stage_while_it_computes(server: VllmServer) -> None:
    _ask_for_long(server)
    _titled(server, "Worker_PP1").kill()


def _terminate_while_it_answers(server: VllmServer) -> None:
    """Stock vLLM waits for that answer's connection for ever."""
    _ask_for_long(server)
    server.process.send_signal(signal.SIGTERM)


@pytest.mark.parametrize(
    "fault",
    [
        _kill_main,
        _kill_engine,
        _kill_first_stage,
        _kill_last_stage_while_it_computes,
        _terminate_while_it_answers,
    ],
)
def test_nothing_is_left(fault: Callable[[VllmServer], None]) -> None:
    server = VllmServer(HYBRID_MODEL, *SMALL, *UNSUPERVISED)
    try:
        server.wait_ready()
        fault(server)
        server.process.wait(60)
        server.note_leftovers(patience=40)
    finally:
        server.kill()
    assert not server.left, (server.left, server.text()[-3000:])
    server.clean_up()


def _engine_at_start(server: VllmServer) -> psutil.Process:
    """The engine's process, as soon as it exists; its title may not be set yet."""
    return _wait_for(server, lambda processes: processes[0], depth=1)


def _wait_for(
    server: VllmServer, pick: Callable[[list[psutil.Process]], psutil.Process], depth: int
) -> psutil.Process:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        generation = [psutil.Process(server.process.pid)]
        for _ in range(depth):
            generation = [child for one in generation for child in one.children()
                          if "resource_tracker" not in " ".join(child.cmdline())]  # fmt: skip
        if generation:
            return pick(generation)
        time.sleep(0.1)
    raise TimeoutError(server.text()[-3000:])


@pytest.mark.parametrize("who", ["main before the handshake", "engine while stages start"])
def test_nothing_is_left_when_a_start_is_cut_off(who: str) -> None:
    server = VllmServer(HYBRID_MODEL, *SMALL)
    try:
        engine = _engine_at_start(server)
        if who.startswith("main"):
            time.sleep(3)
            server.process.kill()
        else:
            _wait_for(server, lambda stages: stages[0], depth=2)
            time.sleep(0.5)
            engine.kill()
        server.process.wait(60)
        server.note_leftovers(patience=60)
    finally:
        server.kill()
    assert not server.left, (server.left, server.text()[-3000:])
    server.clean_up()
