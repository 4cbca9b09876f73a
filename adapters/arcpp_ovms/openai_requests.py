"""What OpenAI clients ask, checked. What the engine cannot do is refused by name."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

#: Asked-for things the engine has no answer to yet -> what may be there nevertheless.
_NOT_YET: dict[str, tuple[Any, ...]] = {
    "n": (None, 1),
    "best_of": (None, 1),
    "logprobs": (None, False),
    "top_logprobs": (None, 0),
    "echo": (None, False),
    "suffix": (None, ""),
    "response_format": (None, {"type": "text"}),
    "tools": (None, []),
    "functions": (None, []),
}


class StreamOptions(BaseModel):
    """include_usage: a last chunk with the counts of tokens."""

    model_config = ConfigDict(extra="ignore")
    include_usage: bool = False


class Asked(BaseModel):
    """What both endpoints share. Fields that are not known are let through, as OpenAI does."""

    model_config = ConfigDict(extra="allow")
    model: str = ""
    max_tokens: int | None = Field(default=None, ge=1)
    temperature: float | None = Field(default=None, ge=0, le=100, allow_inf_nan=False)
    top_p: float | None = Field(default=None, gt=0, le=1, allow_inf_nan=False)
    top_k: int | None = Field(default=None, ge=-1)
    seed: int | None = Field(default=None, ge=0)
    stream: bool = False
    stream_options: StreamOptions | None = None
    ignore_eos: bool = False
    stop_token_ids: list[int] = Field(default_factory=list, max_length=1024)
    stop: str | list[str] | None = None
    include_stop_str_in_output: bool = False
    min_tokens: int = Field(default=0, ge=0)
    min_p: float | None = Field(default=None, ge=0, le=1, allow_inf_nan=False)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2, allow_inf_nan=False)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2, allow_inf_nan=False)
    repetition_penalty: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    logit_bias: dict[int, float] | None = Field(default=None, max_length=1024)

    @property
    def stop_texts(self) -> tuple[str, ...]:
        """Texts that end the output."""
        many = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return tuple(text for text in many if text)

    @model_validator(mode="after")
    def _nothing_ignored(self) -> Asked:
        for name, harmless in _NOT_YET.items():
            value = (self.model_extra or {}).get(name)
            if value not in harmless:
                raise ValueError(f"{name} is not supported by this engine yet: leave it out")
        return self

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with the counts of tokens."""
        return self.stream_options is not None and self.stream_options.include_usage


class TextPart(BaseModel):
    """A part of a message."""

    model_config = ConfigDict(extra="ignore")
    type: Literal["text"]
    text: str


class Message(BaseModel):
    """One of a conversation. Content may be parts, of text."""

    model_config = ConfigDict(extra="ignore")
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None

    @property
    def text(self) -> str:
        """Its content."""
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""


class ChatAsked(Asked):
    """Of /chat/completions."""

    messages: list[Message] = Field(min_length=1, max_length=4096)
    max_completion_tokens: int | None = Field(default=None, ge=1)

    @property
    def prompt(self) -> list[dict[str, str]]:
        """For the engine."""
        return [{"role": each.role, "content": each.text} for each in self.messages]

    @property
    def most(self) -> int | None:
        """Output tokens at most, where it is said."""
        return self.max_completion_tokens or self.max_tokens


class CompletionAsked(Asked):
    """Of /completions: text or token ids, one prompt."""

    prompt: str | list[int] | list[str] = Field(union_mode="left_to_right")

    @property
    def most(self) -> int | None:
        """Output tokens at most; OpenAI's default is 16."""
        return self.max_tokens or 16

    @model_validator(mode="after")
    def _one_prompt(self) -> CompletionAsked:
        prompt = self.prompt
        if isinstance(prompt, list) and prompt and isinstance(prompt[0], str):
            if len(prompt) > 1:
                raise ValueError("prompt: one at a time is supported, not a list of several")
            self.prompt = prompt[0]
        return self
