"""Clients that stream without end, and whether what they got is what the model says.

A stream is compared with the one the same prompt got while nothing went wrong, up to the first
token that differs; there, the reference's two best logits must be closer than rounding. From then
on, and in every other stream too, each token is judged by itself: the whole stream is given to
the model as a prompt, in one piece, and every generated token must be the best there or within
rounding of it. That is what a run that computes everything anew at every token would say.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

import openai

from tests.support.generate import Continuation

ROUNDING = 0.1  # of bfloat16 logits, which GDN on vLLM's CPU build forces; see test_vllm_tokens
_PHRASES = (
    "In the beginning God created the heaven", "And it came to pass in those days",
    "The LORD is my shepherd", "And Moses said unto the people", "Now the sons of Israel",
    "Blessed is the man that", "And the angel of the LORD", "Then answered Peter and said",
    "Thus saith the LORD of hosts", "And David went up from", "The words of the wise",
    "Behold, I come quickly",
)  # fmt: skip

_GREEDY: dict[str, Any] = {
    "temperature": 0,
    "extra_body": {"ignore_eos": True, "return_tokens_as_token_ids": True},
}


@dataclass
class Stream:
    """One answer. ids: tokens, as they came. error: why it ended before its time."""

    prompt: str
    tokens: int
    ids: list[int] = field(default_factory=list)
    text: str = ""
    error: str | None = None


def prompts(count: int) -> list[str]:
    """Different prompts of different lengths."""
    return [
        f"{_PHRASES[i % len(_PHRASES)]} {'and the people ' * (i % 5)}".strip() for i in range(count)
    ]


def run(client: openai.OpenAI, prompt: str, tokens: int) -> Stream:
    """One stream to its end. Never raises for the server's sake."""
    stream = Stream(prompt, tokens)
    try:
        replies = client.completions.create(
            model="model", prompt=prompt, max_tokens=tokens, logprobs=0, stream=True, **_GREEDY
        )
        for reply in replies:
            choice = reply.choices[0]
            stream.text += choice.text
            if choice.logprobs is not None:
                stream.ids += [_id(token) for token in choice.logprobs.tokens or ()]
    except Exception as error:  # httpx's too, which openai lets through while streaming
        stream.error = f"{type(error).__name__}: {error}"
    if stream.error is None and len(stream.ids) != tokens:
        stream.error = f"{len(stream.ids)} tokens instead of {tokens}"
    return stream


def reference(
    client: openai.OpenAI, prompt: str | list[int], tokens: int, model: str = "model"
) -> Continuation:
    """The tokens and margins of a quiet server."""
    reply = client.completions.create(
        model=model, prompt=prompt, max_tokens=tokens, logprobs=2, **_GREEDY
    )
    logprobs = reply.choices[0].logprobs
    assert logprobs is not None
    margins = []
    for top in logprobs.top_logprobs or ():
        best, second = sorted(top.values(), reverse=True)[:2]
        margins.append(best - second)
    return Continuation([_id(token) for token in logprobs.tokens or ()], margins)


def worst_token(client: openai.OpenAI, stream: Stream) -> float:
    """How far below the best the worst token of ``stream`` is, in logits; see the module."""
    prompt_ids = _tokenize(client, stream.prompt)
    reply = client.completions.create(
        model="model",
        prompt=prompt_ids + stream.ids,
        max_tokens=1,
        temperature=0,
        extra_body={"prompt_logprobs": 1},
    )
    given: list[Any] = reply.choices[0].prompt_logprobs  # type: ignore[attr-defined]
    worst = 0.0
    for at, token in enumerate(stream.ids, start=len(prompt_ids)):
        said = {int(name): entry["logprob"] for name, entry in given[at].items()}
        worst = max(worst, max(said.values()) - said[token])
    return worst


def _tokenize(client: openai.OpenAI, text: str) -> list[int]:
    url = str(client.base_url).removesuffix("/v1/") + "/tokenize"
    reply = client.post(url, body={"model": "model", "prompt": text}, cast_to=dict[str, Any])
    return list(reply["tokens"])


def _id(token: str) -> int:
    return int(token.removeprefix("token_id:"))


class Crowd:
    """So many clients, each streaming one answer after another until told to stop."""

    def __init__(self, url: str, count: int, tokens: int) -> None:
        self._url, self._tokens = url, tokens
        self.finished: list[Stream] = []
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._stream, args=(prompt, 7 * number), daemon=True)
            for number, prompt in enumerate(prompts(count))
        ]

    def __enter__(self) -> Crowd:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(300)

    @property
    def stuck(self) -> int:
        """Clients that did not end though told to."""
        return sum(thread.is_alive() for thread in self._threads)

    def _stream(self, prompt: str, longer: int) -> None:
        client = openai.OpenAI(base_url=self._url, api_key="none", timeout=600, max_retries=0)
        while not self._stop.is_set():
            done = run(client, prompt, self._tokens + longer)
            with self._lock:
                self.finished.append(done)
