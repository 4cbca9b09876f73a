"""Tokens from logits, on the host: the batch at once where rows are plainly greedy.

What changes logits comes in the order of openvino_genai 2026 (src/cpp/src/sampling): end tokens
before min_tokens, repetition, presence and frequency penalty, then top_k, temperature, min_p and
top_p of those that are left. logit_bias, which it does not have, comes before the penalties, as
in vLLM.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from arcpp.errors import NonFinite

from .request import TokenLogprob
from .sampling import Sampling

Logits = NDArray[np.float32]


@dataclass(frozen=True)
class Choice:
    """A token, and its log-probability where somebody asked."""

    token: int
    logprob: TokenLogprob | None = None


class Sampler:
    """The choices of one request. It remembers what penalties need, and draws."""

    def __init__(
        self,
        sampling: Sampling,
        vocab_size: int,
        prompt: Iterable[int] = (),
        end_tokens: Iterable[int] = (),
    ) -> None:
        """end_tokens: the model's."""
        self.sampling = sampling
        self._made = 0
        self._bias = np.array(list(sampling.logit_bias), np.int64)
        self._added = np.array(list(sampling.logit_bias.values()), np.float32)
        self._ends = np.array(sorted({*end_tokens, *sampling.stop_token_ids}), np.int64)
        self._chance = None if sampling.greedy else np.random.default_rng(sampling.seed)
        if sampling.penalizes:
            self._counts = np.zeros(vocab_size, np.int32)
            self._seen = np.zeros(vocab_size, np.bool_)
            self._seen[list(prompt)] = True

    @property
    def plain(self) -> bool:
        """Whether the largest logit is the choice, now."""
        asked = self.sampling
        changes = asked.penalizes or asked.logit_bias or self._made < asked.min_tokens
        return asked.greedy and not changes

    def made(self, token: int) -> None:
        """Told of every output token."""
        self._made += 1
        if self.sampling.penalizes:
            self._counts[token] += 1
            self._seen[token] = True

    def choose(self, logits: NDArray[np.float32]) -> int:
        """A token. logits [vocabulary], not changed. Raises NonFinite."""
        changed = self._changed(logits)
        if self._chance is None:
            return int(changed.argmax())
        ids, chances = probabilities(changed, self.sampling)
        place = int(np.searchsorted(np.cumsum(chances), self._chance.random(), side="right"))
        return int(ids[min(place, len(ids) - 1)])

    def _changed(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        if not np.isfinite(logits.max()):
            raise NonFinite("logits")
        asked, changed = self.sampling, logits.copy()
        if self._made < asked.min_tokens:
            changed[self._ends] = -np.inf
        changed[self._bias] += self._added
        if asked.penalizes:
            self._penalize(changed)
        return changed

    def _penalize(self, changed: NDArray[np.float32]) -> None:
        """In place. Presence and frequency penalty are taken from logits that are not negative and
        added to those that are, as openvino_genai does."""
        asked = self.sampling
        if asked.repetition_penalty != 1:
            ids = np.flatnonzero(self._seen)
            values, penalty = changed[ids], np.float32(asked.repetition_penalty)
            changed[ids] = np.where(values >= 0, values / penalty, values * penalty)
        ids = np.flatnonzero(self._counts)
        for penalty, times in (
            (asked.presence_penalty, np.float32(1)),
            (asked.frequency_penalty, self._counts[ids].astype(np.float32)),
        ):
            if penalty:
                values = changed[ids]
                changed[ids] = values - np.where(values >= 0, 1, -1) * np.float32(penalty) * times


def pick(logits: Logits, rows: Sequence[Sampler]) -> list[Choice]:
    """A choice for each row, of which its sampler is told.

    logits [R, vocabulary] float32, not changed. Raises NonFinite for a row without a largest
    finite value.
    """
    best = logits.argmax(axis=1)
    top = logits[np.arange(len(best)), best]
    if not np.isfinite(top).all():  # argmax takes the first NaN it meets
        raise NonFinite("logits")
    tokens: list[int] = best.tolist()
    choices = []
    for row, sampler in enumerate(rows):
        token = tokens[row] if sampler.plain else sampler.choose(logits[row])
        sampler.made(token)
        wanted = sampler.sampling.logprobs
        said = None if wanted is None else logprob(logits[row], token, wanted)
        choices.append(Choice(token, said))
    return choices


def logprob(logits: NDArray[np.float32], token: int, count: int) -> TokenLogprob:
    """Of ``token``, with the ``count`` likeliest. logits [vocabulary]."""
    wide = logits.astype(np.float64)
    wide -= wide.max()
    all_of_them = wide - np.log(np.exp(wide).sum())
    count = min(count, len(wide))
    ids = np.argpartition(all_of_them, len(wide) - count)[len(wide) - count :] if count else []
    top = sorted(((int(one), float(all_of_them[one])) for one in ids), key=lambda of: (-of[1], of))
    return TokenLogprob(token, float(all_of_them[token]), tuple(top))


def probabilities(logits: NDArray[np.float32], sampling: Sampling) -> tuple[NDArray, NDArray]:
    """(token ids, their probabilities in descending order) that are drawn from.

    The top_k likeliest, by temperature, without those below min_p, then as few as make up top_p.
    """
    scaled = logits.astype(np.float64) / sampling.temperature
    count = min(sampling.top_k or len(scaled), len(scaled))
    if count < len(scaled):
        ids = np.argpartition(scaled, len(scaled) - count)[-count:]
    else:
        ids = np.arange(len(scaled))
    ids = ids[np.argsort(-scaled[ids], kind="stable")]
    chances = np.exp(scaled[ids] - scaled[ids[0]])
    kept = len(ids)
    if sampling.min_p > 0:
        kept = int((chances >= sampling.min_p).sum())
    # Shares for top_p are of what top_k left: min_p takes away, but scales nothing up.
    chances /= chances.sum()
    if sampling.top_p < 1:
        kept = min(kept, int(np.searchsorted(np.cumsum(chances), sampling.top_p)) + 1)
    return ids[:kept], chances[:kept] / chances[:kept].sum()
