"""Greedy text from a chain of OpenVINO stages, without an engine: requests have own blocks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from arcpp_openvino.batch import SequenceStep, StepBatch, step_batch
from arcpp_openvino.chain import Chain
from arcpp_openvino.options import ChainOptions

MODELS = Path(__file__).resolve().parents[1] / "models"
HYBRID = MODELS / "kjv-hybrid-8l" / "ov"

#: float32 throughout: then stages, batches and chunks change nothing but the order of sums.
EXACT = {"precision": "f32", "kv_cache_precision": "f32"}


def open_chain(path: Path, partition: Sequence[int], **options: Any) -> Chain:
    """A chain of stages on the CPU, all in float32."""
    asked = {"kv_blocks": 128, "max_sequences": 12, **EXACT, **options}
    return Chain.from_folder(path, ("CPU",) * len(partition), partition, ChainOptions(**asked))


def prompts() -> list[list[int]]:
    """Of the bundled model's reference."""
    return [row["prompt_ids"] for row in _rows()]


def expected() -> list[list[int]]:
    """Greedy continuations of ``prompts()``, by transformers in float32."""
    return [row["output_ids"] for row in _rows()]


def _rows() -> list[dict[str, Any]]:
    found = json.loads((HYBRID.parent / "reference.json").read_text(encoding="utf-8"))
    rows: list[dict[str, Any]] = found["prompts"]
    return rows


@dataclass
class Request:
    """One sequence. todo: tokens that are not in its cache yet. state: its state block."""

    todo: list[int]
    blocks: list[int]
    state: int
    past: int = 0
    output: list[int] = field(default_factory=list)

    def step(self, most: int) -> SequenceStep:
        """Its next tokens, ``most`` at most; logits where they are its last ones."""
        tokens = self.todo[:most]
        read = self.state if self.past else 0  # the zero block
        whole = len(tokens) == len(self.todo)
        return SequenceStep(tokens, self.past, self.blocks, read, (self.state,), wants_logits=whole)

    def done(self, count: int) -> None:
        """``count`` tokens are in the cache now."""
        self.past += count
        del self.todo[:count]


def requests(chain: Chain, ids: Sequence[Sequence[int]], new_tokens: int) -> list[Request]:
    """A request per prompt, with blocks for all that it will need."""
    found, first = [], 0
    for number, prompt in enumerate(ids):
        count = -(-(len(prompt) + new_tokens) // chain.profile.block_size)
        found.append(Request(list(prompt), list(range(first, first + count)), number + 1))
        first += count
    assert first <= chain.profile.kv_blocks
    return found


def batch_of(chain: Chain, asked: Sequence[Request], chunk: int = 4096) -> StepBatch:
    """The next step of ``asked``."""
    steps = [request.step(chunk) for request in asked]
    return step_batch(steps, chain.profile.block_size, hybrid=chain.profile.hybrid)


def after(asked: Sequence[Request], logits: Any, chunk: int = 4096) -> None:
    """Take the most likely token of each request whose prompt is through."""
    row = 0
    for request in asked:
        count = min(chunk, len(request.todo))
        request.done(count)
        if not request.todo:
            token = int(logits[row].argmax())
            row += 1
            request.output.append(token)
            request.todo.append(token)
    assert row == len(logits)


def greedy(
    chain: Chain, ids: Sequence[Sequence[int]], new_tokens: int, chunk: int = 4096
) -> list[list[int]]:
    """Continuations of ``ids``, all in one batch."""
    asked = requests(chain, ids, new_tokens)
    while any(len(request.output) < new_tokens for request in asked):
        after(asked, chain.run(batch_of(chain, asked, chunk)), chunk)
    return [request.output[:new_tokens] for request in asked]


def logits_of(chain: Chain, ids: Sequence[Sequence[int]], steps: int) -> Any:
    """Logits [steps, prompts, vocabulary] of greedy steps."""
    asked = requests(chain, ids, steps)
    found = []
    for _ in range(steps):
        found.append(chain.run(batch_of(chain, asked)).copy())
        after(asked, found[-1])
    return np.stack(found)
