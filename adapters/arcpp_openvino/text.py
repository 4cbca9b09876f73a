"""Text to tokens and back, with openvino_genai's tokenizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from arcpp.errors import BadInput, BadModel

_UNFINISHED = "\ufffd"


class Tokenizer(Protocol):
    """What the engine needs of a tokenizer."""

    def encode(self, text: str) -> list[int]:
        """Tokens of a prompt. Raises BadInput for text that cannot be encoded."""

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of tokens, special ones left out."""

    def chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Tokens of a conversation, up to where the model answers. Raises BadInput."""

    @property
    def end_tokens(self) -> frozenset[int]:
        """Tokens that end an answer."""


class GenaiTokenizer:
    """The tokenizer IRs of a folder."""

    def __init__(self, folder: Path) -> None:
        """Raises BadModel, ImportError without openvino_genai."""
        import openvino_genai  # type: ignore[import-not-found, unused-ignore]

        try:
            self._tokenizer: Any = openvino_genai.Tokenizer(str(folder))
        except RuntimeError as error:
            said = str(error).strip().splitlines()[-1][:160]
            raise BadModel(str(folder), said, "is why its tokenizer cannot be loaded") from None
        self._end = frozenset(_end_tokens(folder, self._tokenizer.get_eos_token_id()))

    @property
    def end_tokens(self) -> frozenset[int]:
        """As in the protocol."""
        return self._end

    def encode(self, text: str) -> list[int]:
        """As in the protocol."""
        _check(text)
        ids = self._tokenizer.encode(text, add_special_tokens=True).input_ids
        return [int(token) for token in ids.data.reshape(-1)]

    def decode(self, tokens: Sequence[int]) -> str:
        """As in the protocol."""
        return str(self._tokenizer.decode(list(tokens))) if tokens else ""

    def chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """As in the protocol."""
        try:
            text = self._tokenizer.apply_chat_template(
                [dict(message) for message in messages], add_generation_prompt=True
            )
        except RuntimeError as error:
            said = str(error).strip().splitlines()[-1][:160]
            raise BadInput("messages", said, "is what the chat template says") from None
        _check(text)
        ids = self._tokenizer.encode(text, add_special_tokens=False).input_ids
        return [int(token) for token in ids.data.reshape(-1)]


def _check(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise BadInput("prompt", error.reason, "is not text that has a UTF-8 form") from None


def _end_tokens(folder: Path, of_tokenizer: int) -> set[int]:
    """Of generation_config.json, which may name several, else the tokenizer's."""
    import json

    try:
        written = json.loads((folder / "generation_config.json").read_text("utf-8"))
        found = written.get("eos_token_id")
    except (OSError, ValueError, AttributeError):
        found = None
    many = found if isinstance(found, list) else [found]
    tokens = {token for token in many if isinstance(token, int)}
    if tokens or of_tokenizer is None or of_tokenizer < 0:
        return tokens
    return {int(of_tokenizer)}


class Detokenizer:
    """Text of one output as it grows: each character once, when it is complete.

    Decodes from a few tokens back, because a token's text may depend on the one before it.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._tokens: list[int] = []
        # Decoded from the first; the text up to the second is out.
        self._from = self._told = 0

    def add(self, tokens: Sequence[int]) -> str:
        """New text, perhaps none, after ``tokens``."""
        self._tokens += tokens
        whole = self._tokenizer.decode(self._tokens[self._from :])
        if whole.endswith(_UNFINISHED):
            return ""
        return self._new(whole)

    def finish(self) -> str:
        """What is left, with a replacement character where it stays incomplete."""
        if self._told == len(self._tokens):
            return ""
        return self._new(self._tokenizer.decode(self._tokens[self._from :]))

    def _new(self, whole: str) -> str:
        before = self._tokenizer.decode(self._tokens[self._from : self._told])
        new = whole[len(before) :]
        if new or self._told < len(self._tokens):
            self._from, self._told = self._told, len(self._tokens)
        return new


class OutputText:
    """Text of one output up to the first of ``stop``, told as soon as it can be no part of one."""

    def __init__(
        self, tokenizer: Tokenizer, stop: Sequence[str] = (), *, include_stop: bool = False
    ) -> None:
        self._words, self._stop, self._include = Detokenizer(tokenizer), tuple(stop), include_stop
        self._held = ""  # may be the beginning of a stop text
        self.stopped = False

    def add(self, tokens: Sequence[int]) -> str:
        """New text, perhaps none. After ``stopped`` there is none."""
        return self._out(self._words.add(tokens), last=False)

    def finish(self) -> str:
        """What is left."""
        return self._out(self._words.finish(), last=True)

    def _out(self, new: str, *, last: bool) -> str:
        if self.stopped:
            return ""
        text = self._held + new
        found = [(at, -len(one), one) for one in self._stop if (at := text.find(one)) >= 0]
        if found:
            self.stopped = True
            at, _, one = min(found)
            return text[: at + len(one)] if self._include else text[:at]
        held = 0 if last else max((_overlap(text, one) for one in self._stop), default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]


def _overlap(text: str, stop: str) -> int:
    """Characters at the end of ``text`` that ``stop`` begins with; all of it not counted."""
    most = min(len(stop) - 1, len(text))
    return next((n for n in range(most, 0, -1) if text.endswith(stop[:n])), 0)
