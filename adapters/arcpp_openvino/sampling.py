"""What somebody may ask about the choice of tokens, checked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from arcpp.errors import BadInput

MOST_LOGPROBS = 20  # as OpenAI's


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen, and what ends an output. Raises BadInput.

    max_tokens, min_tokens: output tokens; before min_tokens nothing but max_tokens and stop ends
    it. temperature: 0 is greedy. top_k: 0 for all. top_p: in (0, 1]. min_p: least probability, as
    a share of the likeliest token's. seed: None draws one. stop_token_ids: end the output and are
    not part of its text. stop: texts that end it, wherever they begin in a token; include_stop:
    they are part of the output. ignore_eos: go on after the model's end tokens.
    repetition_penalty: of tokens in prompt or output, 1 is none. presence_penalty,
    frequency_penalty: of tokens in the output, once or by their number. logit_bias: token id ->
    what is added to its logit. logprobs: of the chosen tokens and of so many of the likeliest at
    each place; None for none. What equals openvino_genai is in docs/openvino.md.
    """

    max_tokens: int = 128
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    min_tokens: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    stop: tuple[str, ...] = ()
    include_stop: bool = False
    logprobs: int | None = None

    def __post_init__(self) -> None:
        _integer("max_tokens", self.max_tokens, 1)
        _integer("min_tokens", self.min_tokens, 0)
        _integer("top_k", self.top_k, 0)
        if self.seed is not None:
            _integer("seed", self.seed, 0)
        self._check_numbers()
        for token in (*self.stop_token_ids, *self.logit_bias):
            _integer("stop_token_ids" if token in self.stop_token_ids else "logit_bias", token, 0)
        for text in self.stop:
            if not isinstance(text, str) or not text:
                raise BadInput("stop", text, "is not text with a character in it")
        if self.logprobs is not None:
            _integer("logprobs", self.logprobs, 0)
            if self.logprobs > MOST_LOGPROBS:
                raise BadInput("logprobs", self.logprobs, f"is more than {MOST_LOGPROBS}")

    def _check_numbers(self) -> None:
        _number("temperature", self.temperature, 0.0, math.inf, "a number, 0 or more")
        _number("top_p", self.top_p, 0.0, 1.0, "a number above 0, 1 at most")
        _number("min_p", self.min_p, 0.0, 1.0, "a number from 0 to 1")
        for name in ("presence_penalty", "frequency_penalty"):
            _number(name, getattr(self, name), -2.0, 2.0, "a number from -2 to 2")
        _number("repetition_penalty", self.repetition_penalty, 0.0, math.inf, "a number above 0")
        for name in ("top_p", "repetition_penalty"):
            if getattr(self, name) == 0:
                raise BadInput(name, 0, "is not a number above 0")
        for bias in self.logit_bias.values():
            _number("logit_bias", bias, -100.0, 100.0, "a number from -100 to 100")

    @property
    def greedy(self) -> bool:
        """Whether the best token is always taken."""
        return self.temperature == 0 or self.top_k == 1

    @property
    def penalizes(self) -> bool:
        """Whether earlier tokens change the choice."""
        penalties = (self.presence_penalty, self.frequency_penalty)
        return self.repetition_penalty != 1 or any(penalties)


def _integer(what: str, value: object, low: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise BadInput(what, value, f"is not an integer, {low} or more")


def _number(what: str, value: object, low: float, high: float, right: str) -> None:
    fits = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not fits or not math.isfinite(value) or not low <= value <= high:  # type: ignore[arg-type]
        raise BadInput(what, value, f"is not {right}")
