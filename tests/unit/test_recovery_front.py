"""What an API server answers while stages restart, without a server."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from arcpp_vllm.recovery import front, metrics, status


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def recovering(folder: Path, **more: Any) -> None:
    status.write(folder, status.Status(recovering="DeviceLost on xpu:1", since=time.time(), **more))


class App:
    """The server behind: answers 200 once it is let."""

    def __init__(self) -> None:
        self.let = asyncio.Event()
        self.entered = 0

    async def __call__(self, scope: Any, _receive: Any, send: Any) -> None:
        self.entered += 1
        if scope.get("method") == "POST":
            await self.let.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"ok"})


async def ask(middleware: Any, method: str, path: str) -> tuple[int, dict[str, str], bytes]:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    await middleware({"type": "http", "method": method, "path": path}, receive, send)
    headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], headers, sent[1]["body"]


def test_untroubled_everything_passes(folder: Path) -> None:
    async def go() -> None:
        app = App()
        app.let.set()
        middleware = front.RecoveryMiddleware(app, folder=folder, bound=0)
        for method, path in (("GET", "/health"), ("POST", "/v1/completions")):
            assert (await ask(middleware, method, path))[0] == 200

    asyncio.run(go())


@pytest.mark.parametrize("path", ["/health", "/ping"])
def test_health_is_503_with_a_time_to_come_back(folder: Path, path: str) -> None:
    recovering(folder, expected=12.0)

    async def go() -> None:
        middleware = front.RecoveryMiddleware(App(), folder=folder, bound=10)
        code, headers, body = await ask(middleware, "GET", path)
        assert code == 503
        assert 10 <= int(headers["retry-after"]) <= 12
        assert "DeviceLost on xpu:1" in json.loads(body)["error"]["message"]
        assert (await ask(middleware, "GET", "/metrics"))[0] == 200

    asyncio.run(go())


def test_requests_wait_up_to_the_bound(folder: Path) -> None:
    recovering(folder)

    async def go() -> None:
        app = App()
        middleware = front.RecoveryMiddleware(app, folder=folder, bound=2)
        waiting = [
            asyncio.create_task(ask(middleware, "POST", "/v1/completions")) for _ in range(2)
        ]
        await asyncio.sleep(0)
        code, headers, body = await ask(middleware, "POST", "/v1/completions")
        assert code == 503
        assert int(headers["retry-after"]) >= 1
        assert "2 requests wait" in json.loads(body)["error"]["message"]
        app.let.set()
        assert [(await one)[0] for one in waiting] == [200, 200]
        assert app.entered == 2
        assert (await ask(middleware, "POST", "/v1/completions"))[0] == 200, "there is room again"

    asyncio.run(go())


def test_the_time_to_come_back_never_falls_below_a_second() -> None:
    assert status.Status(since=time.time() - 1000, expected=1).retry_after == 1


@pytest.mark.parametrize("text", ["", "{", '{"recovering": 3, "no": 1}', "[]", "null"])
def test_a_file_that_cannot_be_read_says_nothing(folder: Path, text: str) -> None:
    (folder / "recovery.json").write_text(text)
    assert status.read(folder) == status.Status()


def test_the_file_is_nobody_elses(folder: Path) -> None:
    recovering(folder)
    assert (folder / "recovery.json").stat().st_mode & 0o777 == 0o600
    assert status.read(folder).recovering == "DeviceLost on xpu:1"


def test_the_middleware_is_put_into_apps(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    added: list[Any] = []
    module = SimpleNamespace(init_entrypoints_middleware=lambda *_: added.append("vLLM's"))
    monkeypatch.setitem(front.sys.modules, "vllm.entrypoints.launchers.app", module)
    app = SimpleNamespace(add_middleware=lambda kind, **how: added.append((kind, how)))
    for _ in range(2):
        front.install(folder, 5)
    module.init_entrypoints_middleware(None, app, ())
    assert added == [(front.RecoveryMiddleware, {"folder": folder, "bound": 5}), "vLLM's"]


def test_a_failed_request_is_told_why(folder: Path) -> None:
    why = front._reason({"cmpl-12-0-abc": "its stage was lost"}, "cmpl-12")
    assert why == "its stage was lost"
    assert front._reason({"cmpl-12-0-abc": "x"}, "cmpl-99") is None


def _serve(module: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    monkeypatch.setitem(front.sys.modules, "vllm.entrypoints.cli.serve", module)
    front.exit_nonzero()
    command: Callable[[Any], None] = module.ServeSubcommand.cmd
    return command


def test_the_command_ends_with_the_history(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = SimpleNamespace(ServeSubcommand=type("S", (), {"cmd": staticmethod(lambda _a: None)}))
    command = _serve(module, monkeypatch)
    monkeypatch.setattr(front.run_folder, "known", lambda: folder)
    command(None)  # nothing ended
    status.write(folder, status.Status(ended="3 s ago: DeviceLost"))
    with pytest.raises(SystemExit) as ended:
        command(None)
    assert ended.value.code == 70
    assert capsys.readouterr().err == "arcpp: error: the engine ended:\n3 s ago: DeviceLost\n"


def test_metrics_are_what_the_engine_wrote(folder: Path) -> None:
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry()
    registry.register(metrics.RecoveryCollector(folder))
    recovering(
        folder,
        faults={"DeviceLost|1": 2, "StageStalled|": 1},
        recoveries=3,
        seconds={"load": 1.5},
        failed={"a": "b"},
    )
    text = generate_latest(registry).decode()
    for line in (
        'arcpp_faults_total{kind="DeviceLost",stage="1"} 2.0',
        'arcpp_faults_total{kind="StageStalled",stage=""} 1.0',
        "arcpp_recoveries_total 3.0",
        "arcpp_recovering 1.0",
        "arcpp_poisonous_requests_total 1.0",
        'arcpp_recovery_seconds_total{phase="load"} 1.5',
    ):
        assert line in text
