"""What somebody asks of the engine, and what comes back."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from arcpp.errors import ArcppError, BadInput


class FinishReason(StrEnum):
    """Why a generation ended. The first two are OpenAI's words."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    DEADLINE = "deadline"
    ERROR = "error"


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen.

    max_tokens: output tokens at most. temperature: 0 is greedy. top_k: 0 for all. top_p: in
    (0, 1]. seed: None draws one. stop_token_ids: end the output and are not part of its text.
    ignore_eos: go on after the model's end tokens. Raises BadInput.
    """

    max_tokens: int = 128
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        _integer("max_tokens", self.max_tokens, 1)
        _integer("top_k", self.top_k, 0)
        if self.seed is not None:
            _integer("seed", self.seed, 0)
        _number("temperature", self.temperature, 0.0, math.inf, "a number, 0 or more")
        _number("top_p", self.top_p, 0.0, 1.0, "a number above 0, 1 at most")
        if self.top_p == 0:
            raise BadInput("top_p", self.top_p, "is not a number above 0, 1 at most")
        for token in self.stop_token_ids:
            _integer("stop_token_ids", token, 0)

    @property
    def greedy(self) -> bool:
        """Whether the best token is always taken."""
        return self.temperature == 0 or self.top_k == 1


def _integer(what: str, value: object, low: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise BadInput(what, value, f"is not an integer, {low} or more")


def _number(what: str, value: object, low: float, high: float, right: str) -> None:
    fits = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not fits or not math.isfinite(value) or not low <= value <= high:  # type: ignore[arg-type]
        raise BadInput(what, value, f"is not {right}")


@dataclass(frozen=True)
class Piece:
    """A part of an output, as it becomes known.

    text: characters that are complete now (never half of one). token_ids: new tokens; those of
    characters that are not complete yet come without text. finish_reason: set in the last piece
    only. error: of FinishReason.ERROR.
    """

    text: str = ""
    token_ids: tuple[int, ...] = ()
    finish_reason: FinishReason | None = None
    error: ArcppError | None = None


#: Called in the engine's thread with every piece. It must return at once and raise nothing.
Listener = Callable[[Piece], None]


@dataclass(frozen=True)
class Generated:
    """A whole output. text: without stop tokens. prompt_tokens: how many the prompt had."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    prompt_tokens: int


class TooLong(BadInput):
    """A request that can never fit, whatever else runs. fits: output tokens that would."""

    def __init__(self, prompt: int, wanted: int, limit: int, why: str) -> None:
        self.prompt_tokens, self.limit = prompt, limit
        self.fits = max(0, limit - prompt)
        what = "max_tokens" if self.fits else "prompt"
        value = wanted if self.fits else prompt
        advice = (
            f"with a prompt of {prompt} tokens is too many: at most {self.fits}"
            if self.fits
            else f"tokens are too many: at most {limit - 1}, and one of output"
        )
        super().__init__(what, value, f"{advice} ({limit} tokens in all: {why})")


class QueueFull(ArcppError):
    """As many requests wait as may. waiting: how many."""

    def __init__(self, waiting: int) -> None:
        self.waiting = waiting
        super().__init__(f"{waiting} requests wait already: try again later, or raise max_waiting")


class RequestFailed(ArcppError):
    """A request ended in an error of its own. request_id: which."""

    def __init__(self, request_id: str, why: str) -> None:
        self.request_id = request_id
        super().__init__(f"request {request_id}: {why}")


class EngineClosed(ArcppError):
    """The engine takes no more requests. why: closed, draining, or what ended it."""

    def __init__(self, why: str) -> None:
        self.why = why
        super().__init__(f"the engine takes no requests: {why}")


@dataclass(eq=False)
class Running:
    """One request while the engine has it. Belongs to the engine's thread.

    tokens: prompt and output. computed: how many of them the caches hold. blocks: of its KV;
    contents: of those that are full (see BlockPool). deadline: of time.monotonic().
    """

    request_id: str
    tokens: list[int]
    prompt_tokens: int
    sampling: Sampling
    listener: Listener
    deadline: float | None = None
    arrival: int = 0
    computed: int = 0
    cached_tokens: int = 0
    blocks: list[int] = field(default_factory=list)
    contents: list[int] = field(default_factory=list)
    in_flight: bool = False
    ending: FinishReason | None = None  # once the step it is in is over

    @property
    def output(self) -> Sequence[int]:
        """Output tokens so far."""
        return self.tokens[self.prompt_tokens :]

    @property
    def missing(self) -> int:
        """Tokens that are not computed yet; 1 while it decodes."""
        return len(self.tokens) - self.computed
