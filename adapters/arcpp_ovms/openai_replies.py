"""Answers in OpenAI's form: objects, chunks and errors."""

from __future__ import annotations

import json
import time
import uuid
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Reply:
    """One answer in the making. chat: of /chat/completions, else of /completions."""

    model: str
    chat: bool
    id: str = field(default_factory=lambda: f"cmpl-{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(self, text: str, reason: str, usage: dict[str, int]) -> dict[str, Any]:
        """The object of an answer that is not streamed."""
        message = {"role": "assistant", "content": text}
        said = {"message": message} if self.chat else {"text": text}
        kind = "chat.completion" if self.chat else "text_completion"
        choice = {"index": 0, **said, "logprobs": None, "finish_reason": reason}
        return {**self._head(kind), "choices": [choice], "usage": usage}

    def first(self) -> list[dict[str, Any]]:
        """Chunks before any text: who speaks."""
        if not self.chat:
            return []
        return [self._chunk({"delta": {"role": "assistant", "content": ""}}, None)]

    def chunk(self, text: str, reason: str | None) -> dict[str, Any]:
        """A part of the text; the last one says why it ends."""
        if not self.chat:
            return self._chunk({"text": text}, reason)
        return self._chunk({"delta": {"content": text} if text else {}}, reason)

    def usage(self, usage: dict[str, int]) -> dict[str, Any]:
        """The chunk after the last, for whoever asked."""
        return {**self._head(self._kind), "choices": [], "usage": usage}

    @property
    def _kind(self) -> str:
        return "chat.completion.chunk" if self.chat else "text_completion"

    def _chunk(self, said: dict[str, Any], reason: str | None) -> dict[str, Any]:
        choice = {"index": 0, **said, "logprobs": None, "finish_reason": reason}
        return {**self._head(self._kind), "choices": [choice]}

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


def usage(prompt: int, completion: int) -> dict[str, int]:
    """Counts of tokens."""
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }


def error(message: str, kind: str, code: int, param: str | None = None) -> dict[str, Any]:
    """An error's object. kind: OpenAI's "type", such as "invalid_request_error"."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def event(data: dict[str, Any]) -> str:
    """A server-sent event."""
    return f"data: {json.dumps(data, ensure_ascii=False)}\n\n"


DONE = "data: [DONE]\n\n"
