"""An OpenAI-compatible front door over the OpenVINO engine in this process.

Paths are served under /v1, where clients look, and /v3, where OVMS has them. Nothing is answered
that was not understood: fields the engine has no answer to are refused by name.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException

from arcpp.errors import ArcppError, BadInput
from arcpp_openvino import Engine, FinishReason, Sampling
from arcpp_openvino.request import EngineClosed, Piece, QueueFull

from . import openai_replies as replies
from .guard import GatewayOptions, Guard
from .openai_requests import Asked, ChatAsked, CompletionAsked
from .stats_page import stats_page


def make_app(engine: Engine, options: GatewayOptions) -> FastAPI:
    """The application. Closing the engine is the caller's."""
    app = FastAPI(title="arcpp gateway", docs_url=None, redoc_url=None)
    app.add_middleware(Guard, options=options)
    _say_errors(app)
    answers = _Answers(engine, options)
    for prefix in ("/v1", "/v3"):
        app.get(f"{prefix}/models")(answers.models)
        app.post(f"{prefix}/chat/completions")(answers.chat)
        app.post(f"{prefix}/completions")(answers.completion)
    app.get("/health")(answers.health)
    app.get("/metrics")(answers.metrics)
    return app


class _Answers:
    """The endpoints."""

    def __init__(self, engine: Engine, options: GatewayOptions) -> None:
        self._engine, self._options = engine, options

    async def models(self) -> dict[str, Any]:
        """The one model there is."""
        model = {"id": self._options.model, "object": "model", "owned_by": "arcpp", "created": 0}
        length = {"max_model_len": self._engine.max_model_len}
        return {"object": "list", "data": [{**model, **length}]}

    async def health(self) -> Response:
        """200 while requests are taken."""
        return Response(status_code=200 if self._engine.is_alive else 503)

    async def metrics(self) -> PlainTextResponse:
        """For Prometheus."""
        return PlainTextResponse(stats_page(self._engine.stats()))

    async def chat(self, asked: ChatAsked, request: Request) -> Response:
        """/chat/completions."""
        return await self._answer(asked, asked.prompt, asked.most, request, chat=True)

    async def completion(self, asked: CompletionAsked, request: Request) -> Response:
        """/completions."""
        return await self._answer(asked, asked.prompt, asked.most, request, chat=False)

    async def _answer(
        self, asked: Asked, prompt: Any, most: int | None, request: Request, *, chat: bool
    ) -> Response:
        if asked.model not in {"", self._options.model}:
            right = f"is not served here: {self._options.model} is"
            raise BadInput("model", asked.model, right)
        tokens = self._engine.tokens(prompt)
        sampling = _sampling(asked, most or self._engine.max_model_len - len(tokens))
        pieces = self._engine.astream(tokens, sampling, timeout=self._options.timeout)
        reply = replies.Reply(self._options.model, chat)
        first = await anext(pieces)  # refusals are answers with a status, not events
        if asked.stream:
            events = _events(reply, first, pieces, len(tokens), usage=asked.wants_usage)
            return StreamingResponse(events, media_type="text/event-stream")
        whole = await _unless_gone(request, _whole(reply, first, pieces, len(tokens)))
        return Response(status_code=499) if whole is None else JSONResponse(whole)


def _sampling(asked: Asked, most: int) -> Sampling:
    """OpenAI's defaults where nothing is said: temperature 1."""
    return Sampling(
        max_tokens=max(1, most),
        temperature=1.0 if asked.temperature is None else asked.temperature,
        top_p=1.0 if asked.top_p is None else asked.top_p,
        top_k=max(0, asked.top_k or 0),
        seed=asked.seed,
        stop_token_ids=tuple(asked.stop_token_ids),
        ignore_eos=asked.ignore_eos,
        stop=asked.stop_texts,
        include_stop=asked.include_stop_str_in_output,
        min_tokens=asked.min_tokens,
        min_p=asked.min_p or 0.0,
        presence_penalty=asked.presence_penalty or 0.0,
        frequency_penalty=asked.frequency_penalty or 0.0,
        repetition_penalty=asked.repetition_penalty or 1.0,
        logit_bias=asked.logit_bias or {},
    )


def _reason(piece: Piece) -> str | None:
    """OpenAI knows no deadline and no cancelling of ours: both cut the answer short."""
    if piece.finish_reason is None:
        return None
    return "stop" if piece.finish_reason is FinishReason.STOP else "length"


async def _events(
    reply: replies.Reply,
    first: Piece,
    pieces: AsyncIterator[Piece],
    prompt: int,
    *,
    usage: bool,
) -> AsyncIterator[str]:
    count = 0
    async with contextlib.aclosing(pieces):  # type: ignore[type-var]
        for chunk in reply.first():
            yield replies.event(chunk)
        try:
            async for piece in _after(first, pieces):
                count += len(piece.token_ids)
                yield replies.event(reply.chunk(piece.text, _reason(piece)))
        except ArcppError as problem:
            yield replies.event(replies.error(str(problem), "server_error", 500))
            return
        if usage:
            yield replies.event(reply.usage(replies.usage(prompt, count)))
        yield replies.DONE


async def _whole(
    reply: replies.Reply, first: Piece, pieces: AsyncIterator[Piece], prompt: int
) -> dict[str, Any]:
    text, count, reason = "", 0, "stop"
    async with contextlib.aclosing(pieces):  # type: ignore[type-var]
        async for piece in _after(first, pieces):
            text, count = text + piece.text, count + len(piece.token_ids)
            reason = _reason(piece) or reason
    return reply.whole(text, reason, replies.usage(prompt, count))


async def _after(first: Piece, pieces: AsyncIterator[Piece]) -> AsyncIterator[Piece]:
    yield first
    async for piece in pieces:
        yield piece


async def _unless_gone(request: Request, work: Awaitable[Any]) -> Any:
    """What ``work`` gives; None, and it is cancelled, once the client has gone."""
    task = asyncio.ensure_future(work)
    try:
        while not task.done():
            await asyncio.wait([task], timeout=0.25)
            if not task.done() and await request.is_disconnected():
                return None
        return task.result()
    finally:
        task.cancel()


def _say_errors(app: FastAPI) -> None:
    @app.exception_handler(RequestValidationError)
    async def unreadable(_: Request, problem: RequestValidationError) -> JSONResponse:
        return _error(*_first_of(problem), 400)

    @app.exception_handler(ArcppError)
    async def ours(_: Request, problem: ArcppError) -> JSONResponse:
        if isinstance(problem, BadInput):
            return _error(str(problem), "invalid_request_error", 400, problem.what)
        if isinstance(problem, QueueFull):
            return _error(str(problem), "rate_limit_error", 429)
        if isinstance(problem, EngineClosed):
            return _error(str(problem), "unavailable_error", 503)
        return _error(str(problem), "server_error", 500)

    @app.exception_handler(HTTPException)
    async def http(_: Request, problem: HTTPException) -> JSONResponse:
        return _error(str(problem.detail), "invalid_request_error", problem.status_code)


def _first_of(problem: RequestValidationError) -> tuple[str, str]:
    """What is wrong first, in one line, and OpenAI's type of it."""
    first = problem.errors()[0]
    where = ".".join(str(part) for part in first["loc"] if part != "body")
    value = json.dumps(first.get("input"), default=str)[:80]
    said = str(first["msg"]).removeprefix("Value error, ")
    text = f"{where}: {value}: {said}" if where else said
    return " ".join(text.split())[:500], "invalid_request_error"


def _error(message: str, kind: str, code: int, param: str | None = None) -> JSONResponse:
    return JSONResponse(replies.error(message, kind, code, param), status_code=code)
