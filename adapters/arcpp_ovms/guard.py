"""Before anything is read: who may ask, how much, and an id for every request."""

from __future__ import annotations

import hmac
import logging
import uuid
from dataclasses import dataclass

from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from . import openai_replies as replies

logger = logging.getLogger("uvicorn.error")

_OPEN = ("/health", "/metrics")  # without a key


@dataclass(frozen=True)
class GatewayOptions:
    """model: its name to clients. api_key: None lets everybody in. max_body: bytes of a request.
    timeout: seconds of one request, None for any."""

    model: str
    api_key: str | None = None
    max_body: int = 4 << 20
    timeout: float | None = None


class Guard:
    """ASGI middleware. Streams pass through it untouched."""

    def __init__(self, app: ASGIApp, options: GatewayOptions) -> None:
        self._app, self._options = app, options

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse, or pass on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        name, status = uuid.uuid4().hex[:12], 0

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", name.encode())]
            await send(message)

        refused = self._refused(scope)
        try:
            if refused is not None:
                await refused(scope, receive, sending)
            else:
                await self._app(scope, self._bounded(receive), sending)
        finally:
            logger.info("request %s: %s %s: %d", name, scope["method"], scope["path"], status)

    def _refused(self, scope: Scope) -> JSONResponse | None:
        headers = dict(scope["headers"])
        key = self._options.api_key
        if key is not None and scope["path"] not in _OPEN:
            given = headers.get(b"authorization", b"").removeprefix(b"Bearer ")
            if not hmac.compare_digest(given, key.encode()):
                text = "the API key is missing or wrong"
                return JSONResponse(replies.error(text, "authentication_error", 401), 401)
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length) > self._options.max_body:
            return JSONResponse(replies.error(self._too_large, "invalid_request_error", 413), 413)
        return None

    def _bounded(self, receive: Receive) -> Receive:
        """As ``receive``, until the body is too large: not every body says its length."""
        read = 0

        async def bounded() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > self._options.max_body:
                raise HTTPException(413, self._too_large)
            return message

        return bounded

    @property
    def _too_large(self) -> str:
        return f"the body is too large: at most {self._options.max_body} bytes"
