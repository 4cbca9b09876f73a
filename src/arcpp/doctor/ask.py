"""Answers of a running server to fixed prompts, over its OpenAI API with vLLM's extensions."""

from __future__ import annotations

import http.client
import json
from typing import Any
from urllib.parse import urlsplit

from arcpp.errors import BadInput

from .garble import Answer, Sheet

_SECONDS = 600.0  # for one answer: a server on a processor is slow, and others may be asking
_SHOWN = 200  # characters of a refusal


def answers(url: str, sheet: Sheet) -> list[Answer]:
    """What the server at ``url`` (http://host:port) says to the prompts of ``sheet``.

    Greedy, one after the other; then each reference is read back as a prompt for its perplexity.
    Raises BadInput for a server that is not there or answers otherwise.
    """
    model = _ask(url, "GET", "/v1/models")["data"][0]["id"]
    return [
        Answer(
            _continued(url, model, list(prompt), len(reference.ids)),
            _read_back(url, model, list(prompt), list(reference.ids)),
        )
        for prompt, reference in zip(sheet.prompts, sheet.references, strict=True)
    ]


def _continued(url: str, model: str, prompt: list[int], tokens: int) -> list[int]:
    more = {"logprobs": 0, "return_tokens_as_token_ids": True, "ignore_eos": True}
    choice = _complete(url, model, prompt, tokens, more)
    return [int(token.removeprefix("token_id:")) for token in choice["logprobs"]["tokens"]]


def _read_back(url: str, model: str, prompt: list[int], ids: list[int]) -> list[float]:
    choice = _complete(url, model, prompt + ids, 1, {"prompt_logprobs": 0})
    given = choice["prompt_logprobs"][len(prompt) :]
    # A value that is no number has no place in JSON and comes as null.
    logprobs = [place[str(token)]["logprob"] for place, token in zip(given, ids, strict=True)]
    return [float("nan") if logprob is None else float(logprob) for logprob in logprobs]


def _complete(url: str, model: str, prompt: list[int], tokens: int, more: dict[str, Any]) -> Any:
    asked = {"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0} | more
    return _ask(url, "POST", "/v1/completions", asked)["choices"][0]


def _ask(url: str, method: str, path: str, body: object = None) -> Any:
    parts = urlsplit(url if "//" in url else f"http://{url}")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BadInput("--garble", url, "is not the address of a server: http://127.0.0.1:8000")
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    try:
        connection = kind(parts.hostname, parts.port, timeout=_SECONDS)
        try:
            sent = None if body is None else json.dumps(body)
            connection.request(method, path, sent, {"Content-Type": "application/json"})
            reply = connection.getresponse()
            text = reply.read().decode(errors="replace")
        finally:
            connection.close()
        if reply.status != http.client.OK:
            raise BadInput("--garble", url, f"answers {reply.status} to {path}: {text[:_SHOWN]}")
        return json.loads(text)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise BadInput("--garble", url, f"does not answer {path}: {error}") from error
