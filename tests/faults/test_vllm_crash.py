"""Whatever part of a server dies, and however: no process, segment, socket or file is left."""

from __future__ import annotations

import contextlib
import signal
import threading
import urllib.request
from collections.abc import Callable
from http.client import HTTPException

import psutil
import pytest

from tests.adapters.conftest import SMALL
from tests.support import leftovers
from tests.support.vllm_server import HYBRID_MODEL, VllmServer

pytestmark = pytest.mark.vllm


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


def _kill_last_stage_while_it_computes(server: VllmServer) -> None:
    body = b'{"model":"model","prompt":[65,66,67],"max_tokens":900,"ignore_eos":true}'
    request = urllib.request.Request(
        f"{server.url}/completions", data=body, headers={"Content-Type": "application/json"}
    )

    def ask() -> None:
        with contextlib.suppress(OSError, HTTPException):  # it is going to be cut off
            urllib.request.urlopen(request, timeout=60).read()

    threading.Thread(target=ask, daemon=True).start()
    threading.Event().wait(1.0)
    _titled(server, "Worker_PP1").kill()


def _terminate(server: VllmServer) -> None:
    server.process.send_signal(signal.SIGTERM)


@pytest.mark.parametrize(
    "fault",
    [
        _kill_main,
        _kill_engine,
        _kill_first_stage,
        _kill_last_stage_while_it_computes,
        _terminate,
    ],
)
def test_nothing_is_left(fault: Callable[[VllmServer], None]) -> None:
    server = VllmServer(HYBRID_MODEL, *SMALL)
    try:
        server.wait_ready()
        fault(server)
        server.process.wait(60)
        server.note_leftovers(patience=40)
    finally:
        server.kill()
    assert not server.left, (server.left, server.text()[-3000:])
    server.clean_up()
