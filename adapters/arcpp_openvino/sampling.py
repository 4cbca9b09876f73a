"""Tokens from logits, on the host: the batch at once where rows are greedy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from arcpp.errors import NonFinite

from .request import Sampling

Logits = NDArray[np.float32]


def pick(
    logits: Logits,
    rows: Sequence[Sampling],
    chances: Sequence[np.random.Generator | None],
) -> list[int]:
    """A token for each row.

    logits [R, vocabulary] float32, not changed. chances: a generator for each row that is not
    greedy. Raises NonFinite for a row without a largest finite value.
    """
    best = logits.argmax(axis=1)
    top = logits[np.arange(len(best)), best]
    if not np.isfinite(top).all():  # argmax takes the first NaN it meets
        raise NonFinite("logits")
    tokens: list[int] = best.tolist()
    for row, sampling in enumerate(rows):
        if not sampling.greedy:
            chance = chances[row]
            assert chance is not None
            tokens[row] = _drawn(logits[row], sampling, chance)
    return tokens


def probabilities(logits: NDArray[np.float32], sampling: Sampling) -> tuple[NDArray, NDArray]:
    """(token ids, their probabilities in descending order) that are drawn from.

    Temperature first, then the top_k likeliest, then as few of those as make up top_p.
    """
    scaled = logits.astype(np.float64) / sampling.temperature
    count = min(sampling.top_k or len(scaled), len(scaled))
    if count < len(scaled):
        ids = np.argpartition(scaled, len(scaled) - count)[-count:]
    else:
        ids = np.arange(len(scaled))
    ids = ids[np.argsort(-scaled[ids], kind="stable")]
    chances = np.exp(scaled[ids] - scaled[ids[0]])
    chances /= chances.sum()
    if sampling.top_p < 1:
        kept = int(np.searchsorted(np.cumsum(chances), sampling.top_p)) + 1
        ids, chances = ids[:kept], chances[:kept] / chances[:kept].sum()
    return ids, chances


def _drawn(logits: NDArray[np.float32], sampling: Sampling, chance: np.random.Generator) -> int:
    ids, chances = probabilities(logits, sampling)
    place = int(np.searchsorted(np.cumsum(chances), chance.random(), side="right"))
    return int(ids[min(place, len(ids) - 1)])
