"""Whether a model's text is its own: tokens and perplexity beside a reference, as numbers.

A wrong recurrent state does not stop a server; it makes other text, worse text, or "!" for ever.
On fixed prompts that shows as tokens that leave the reference where the model was sure, and as a
perplexity that a healthy model never has. Nothing here runs a model: whoever did brings tokens;
``ask`` gets them from a server.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from arcpp.errors import BadInput

ROUNDING = 0.1  # logits; what bfloat16 changed in the bundled model's answers is below it
_WORSE = 1.05  # perplexity of healthy bfloat16 against float32 stays within a hundredth


@dataclass(frozen=True)
class Answer:
    """What one prompt was continued with. logprobs: natural logarithms, of these tokens or of the
    reference's when the model reads them; what is expected is measured the same way."""

    ids: Sequence[int]
    logprobs: Sequence[float] = ()


@dataclass(frozen=True)
class Reference:
    """What it should be. margins: logits between the two best tokens, for each token."""

    ids: Sequence[int]
    margins: Sequence[float]


@dataclass(frozen=True)
class Sheet:
    """Fixed prompts, as token ids, with what is right. perplexity: of the references' tokens."""

    prompts: tuple[tuple[int, ...], ...]
    references: tuple[Reference, ...]
    perplexity: float | None = None


def read_sheet(path: Path) -> Sheet:
    """The sheet in a JSON file, written as the bundled model's reference.json is:
    ``{"output_perplexity", "prompts": [{"prompt_ids", "output_ids", "margins"}]}``.

    Raises BadInput.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        rows = found["prompts"]
        expected = found.get("output_perplexity")
        sheet = Sheet(
            tuple(tuple(map(int, row["prompt_ids"])) for row in rows),
            tuple(
                Reference(tuple(map(int, row["output_ids"])), tuple(map(float, row["margins"])))
                for row in rows
            ),
            None if expected is None else float(expected),
        )
    except OSError as error:
        raise BadInput("reference", str(path), f"cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        right = "is not a JSON object with prompts of prompt_ids, output_ids and margins"
        raise BadInput("reference", str(path), right) from error
    if not rows or not all(sheet.prompts) or any(
        not one.ids or len(one.ids) != len(one.margins) for one in sheet.references
    ):  # fmt: skip
        right = "needs a prompt at least, and as many margins as output_ids for each"
        raise BadInput("reference", str(path), right)
    return sheet


@dataclass(frozen=True)
class Garble:
    """The comparison. tokens: compared, of all prompts. rounded: answers that left the reference
    where rounding may; wrong: that left it where the model was sure, as (prompt, token, margin).
    perplexity: by the answers' logprobs, and expected; None where nobody measured."""

    tokens: int
    rounded: int
    wrong: tuple[tuple[int, int, float], ...]
    perplexity: float | None = None
    expected: float | None = None

    @property
    def garbled(self) -> bool:
        """Whether something is wrong with state, weights or kernels."""
        worse = self.perplexity is not None and self.expected is not None and (
            not math.isfinite(self.perplexity) or self.perplexity > _WORSE * self.expected
        )  # fmt: skip
        return bool(self.wrong) or worse

    def __str__(self) -> str:
        """One line."""
        text = f"{self.tokens} tokens, {self.rounded} answers rounded, {len(self.wrong)} wrong"
        if self.perplexity is not None and self.expected is not None:
            text += f", perplexity {self.perplexity:.3f} where {self.expected:.3f} is right"
        return text


def compare(
    reference: Sequence[Reference],
    answers: Sequence[Answer],
    *,
    rounding: float,
    expected: float | None = None,
) -> Garble:
    """Compare greedy ``answers`` with ``reference``, prompt by prompt.

    rounding: logits; a token may differ only where the reference's margin is below it. expected:
    perplexity of the same tokens where all is well. Raises BadInput for answers of other lengths.
    """
    if len(reference) != len(answers):
        raise BadInput("answers", len(answers), f"are not {len(reference)}, one per prompt")
    rounded, wrong, tokens = 0, [], 0
    for number, (right, got) in enumerate(zip(reference, answers, strict=True)):
        if len(right.ids) != len(got.ids):
            raise BadInput(f"answer {number}", len(got.ids), f"is not {len(right.ids)} tokens")
        tokens += len(got.ids)
        at = first_difference(right.ids, got.ids)
        if at is None:
            continue
        if right.margins[at] < rounding:
            rounded += 1
        else:
            wrong.append((number, at, right.margins[at]))
    return Garble(tokens, rounded, tuple(wrong), perplexity(answers), expected)


def first_difference(right: Sequence[int], got: Sequence[int]) -> int | None:
    """Place of the first token of ``got`` that is not ``right``'s, of equally many; or None."""
    pairs = enumerate(zip(right, got, strict=True))
    return next((place for place, (a, b) in pairs if a != b), None)


def perplexity(answers: Sequence[Answer]) -> float | None:
    """exp of the mean negative log-probability of all tokens; None when none has one."""
    logprobs = [logprob for answer in answers for logprob in answer.logprobs]
    if not logprobs:
        return None
    return (
        math.exp(-math.fsum(logprobs) / len(logprobs))
        if all(map(math.isfinite, logprobs))
        else math.inf
    )
