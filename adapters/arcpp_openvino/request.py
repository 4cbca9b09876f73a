"""What somebody asks of the engine, and what comes back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from arcpp.errors import ArcppError, BadInput

from .sampling import Sampling


class FinishReason(StrEnum):
    """Why a generation ended. The first two are OpenAI's words."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    DEADLINE = "deadline"
    ERROR = "error"


@dataclass(frozen=True)
class TokenLogprob:
    """A token and its log-probability in the model's own distribution (no penalty, no
    temperature). top: the likeliest ones at its place, best first; as many as asked for."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Piece:
    """A part of an output, as it becomes known.

    text: characters that are complete now (never half of one). token_ids: new tokens; those of
    characters that are not complete yet come without text. finish_reason: set in the last piece
    only. error: of FinishReason.ERROR. logprobs: of token_ids, where they were asked for.
    """

    text: str = ""
    token_ids: tuple[int, ...] = ()
    finish_reason: FinishReason | None = None
    error: ArcppError | None = None
    logprobs: tuple[TokenLogprob, ...] = ()


#: Called in the engine's thread with every piece. It must return at once and raise nothing.
Listener = Callable[[Piece], None]


@dataclass(frozen=True)
class Generated:
    """A whole output. text: without stop tokens. prompt_tokens: how many the prompt had.
    logprobs: of token_ids, where they were asked for."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    prompt_tokens: int
    logprobs: tuple[TokenLogprob, ...] = ()


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
