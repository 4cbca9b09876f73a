"""What clients see while stages restart: 503 from /health, patience for requests, plain errors.

Runs in the API servers. vLLM's convention is kept: /health answers 503 when the engine cannot
serve, which orchestrators and load balancers read as "not ready"; Retry-After says when it will.
Requests in progress and new ones wait, up to a bound; beyond it they get 503 with Retry-After,
which OpenAI's clients honour when they retry.
"""

from __future__ import annotations

import functools
import json
import logging
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

from arcpp_vllm import run_folder

from . import status

logger = logging.getLogger("vllm.arcpp.recovery")

_MARK = "_arcpp_wrapped"
_HEALTH = ("/health", "/ping")
_EXIT_CODE = 70  # as a stage that left a record: EX_SOFTWARE

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class RecoveryMiddleware:
    """ASGI middleware around one API server's app.

    folder: the run folder. bound: POST requests that may wait while stages restart.
    """

    def __init__(self, app: Any, *, folder: Path, bound: int) -> None:
        self._app, self._folder, self._bound = app, folder, bound
        self._waiting = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer for the server while it cannot; else pass on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        now = status.read(self._folder)
        if now.recovering is None:
            await self._app(scope, receive, send)
        elif scope["path"] in _HEALTH:
            await _unavailable(send, now, f"recovering: {now.recovering}")
        elif scope["method"] != "POST":
            await self._app(scope, receive, send)
        elif self._waiting >= self._bound:
            await _unavailable(
                send, now, f"{self._waiting} requests wait for stages to restart, the most allowed"
            )
        else:
            self._waiting += 1
            try:
                await self._app(scope, receive, send)
            finally:
                self._waiting -= 1


async def _unavailable(send: Send, now: status.Status, why: str) -> None:
    error = {"message": f"arcpp: {why}", "type": "ServiceUnavailableError", "code": 503}
    body = json.dumps({"error": error}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"retry-after", str(now.retry_after).encode()),
    ]
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def install(folder: Path, bound: int) -> None:
    """In an API server's process, before it builds its app. Idempotent."""
    told = {
        "/health does not tell of it": _answer_for_apps(folder, bound),
        "a failed request is not told why": _say_why_requests_failed(folder),
    }
    for what, done in told.items():
        if not done:
            logger.warning("arcpp: this vLLM has other names where recovery is shown: %s", what)


def _answer_for_apps(folder: Path, bound: int) -> bool:
    """Add the middleware to every app vLLM builds; innermost, so that API keys are still asked."""
    found = False
    for name in ("vllm.entrypoints.launchers.app", "vllm.entrypoints.openai.api_server"):
        module = sys.modules.get(name)
        original = getattr(module, "init_entrypoints_middleware", None)
        found = found or original is not None
        if original is None or getattr(original, _MARK, False):
            continue

        @functools.wraps(original)
        def init(args: Any, app: Any, *rest: Any, _original: Any = original) -> Any:
            app.add_middleware(RecoveryMiddleware, folder=folder, bound=bound)
            return _original(args, app, *rest)

        setattr(init, _MARK, True)
        module.init_entrypoints_middleware = init  # type: ignore[union-attr]
    return found


def _say_why_requests_failed(folder: Path) -> bool:
    """Put the reason in the place of "Internal server error" (GenerateBaseServing._raise_if_error,
    0.32; the engine can only say "error")."""
    module = sys.modules.get("vllm.entrypoints.generate.base.serving")
    owner = next(
        (o for o in vars(module or object).values() if hasattr(o, "_raise_if_error")), None
    )
    if owner is None or getattr(owner._raise_if_error, _MARK, False):
        return owner is not None
    original = owner._raise_if_error

    @functools.wraps(original)
    def raise_if_error(self: Any, finish_reason: str | None, request_id: str) -> None:
        if finish_reason == "error":
            why = _reason(status.read(folder).failed, request_id)
            if why is not None:
                from vllm.exceptions import GenerationError

                raise GenerationError(why)
        original(self, finish_reason, request_id)

    setattr(raise_if_error, _MARK, True)
    owner._raise_if_error = raise_if_error
    return True


def _reason(failed: dict[str, str], request_id: str) -> str | None:
    """By the id the API server gave; the engine's has a suffix, and a prefix for n > 1."""
    return next((why for name, why in failed.items() if request_id in name), None)


def exit_nonzero() -> None:
    """``vllm serve`` ends with the history and a code that is not 0 when the engine gave up.

    Stock vLLM stops its API server and exits 0 (0.32.0), which a service manager takes for done.
    Called while the command line is built, before vLLM looks the command up. Idempotent.
    """
    module = sys.modules.get("vllm.entrypoints.cli.serve")
    owner = getattr(module, "ServeSubcommand", None)
    original = getattr(owner, "cmd", None)
    if owner is None or original is None or getattr(original, _MARK, False):
        return

    @functools.wraps(original)
    def cmd(args: Any) -> None:
        original(args)
        folder = run_folder.known()
        ended = None if folder is None else status.read(folder).ended
        if ended is not None:
            print(f"arcpp: error: the engine ended:\n{ended}", file=sys.stderr, flush=True)
            raise SystemExit(_EXIT_CODE)

    setattr(cmd, _MARK, True)
    owner.cmd = staticmethod(cmd)
