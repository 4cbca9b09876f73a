"""One paged step of a microbatch: which tokens of which sequences, and where their past lies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]


@dataclass(frozen=True)
class StepBatch:
    """Tokens of S sequences, sequence after sequence: T tokens in all.

    token_ids [T] int64. positions [T] int64: a token's index in its own sequence. past_lens [S]:
    tokens before this step, whose keys and values lie in the sequence's blocks.
    subsequence_begins [S+1]: where each sequence's tokens begin, and T. block_indices: KV blocks of
    each sequence in order, enough for past and step; block_indices_begins [S+1]: where each
    sequence's begin. max_context_len: the largest of past and step together. logits_rows [R]: which
    of the T tokens get logits, ascending; R may be 0.

    Hybrid models also need: state_blocks, per sequence [read, write...], and state_blocks_begins
    [S+1]. cache_interval [S]: 0 writes the state after the last token into the one block written;
    n > 0 writes it after every n tokens and after the last, each into the next block.
    state_past_lens [S]: None for past_lens.

    All int32 where nothing else is said. Arrays are read during ``submit`` only.
    """

    token_ids: NDArray[np.int64]
    positions: NDArray[np.int64]
    past_lens: Ints
    subsequence_begins: Ints
    block_indices: Ints
    block_indices_begins: Ints
    max_context_len: int
    logits_rows: Ints
    state_blocks: Ints | None = None
    state_blocks_begins: Ints | None = None
    cache_interval: Ints | None = None
    state_past_lens: Ints | None = None


@dataclass(frozen=True)
class SequenceStep:
    """What one sequence has in a step.

    token_ids: its new tokens. past: tokens before them. blocks: its KV blocks in order. read,
    writes: its state blocks (``Window.read``, ``Window.writes`` of a SlotPool); several writes
    keep a state after every ``interval`` tokens. wants_logits: of its last token; every: of all.
    """

    token_ids: Sequence[int]
    past: int
    blocks: Sequence[int]
    read: int = 0
    writes: Sequence[int] = ()
    interval: int = 0
    wants_logits: bool = True
    every: bool = False


def step_batch(steps: Sequence[SequenceStep], block_size: int, *, hybrid: bool) -> StepBatch:
    """The batch of ``steps``, in order. Raises ValueError for too few blocks, or state blocks.

    For tests and simple callers: an engine fills arrays that it keeps.
    """
    begins, block_begins, state_begins = [0], [0], [0]
    blocks: list[int] = []
    states: list[int] = []
    rows: list[int] = []
    positions = []
    for number, step in enumerate(steps):
        count = len(step.token_ids)
        needed = -(-(step.past + count) // block_size)
        if not count or needed > len(step.blocks):
            raise ValueError(
                f"sequence {number}: {count} tokens after {step.past} need {needed} blocks, "
                f"{len(step.blocks)} are given"
            )
        if hybrid and not step.writes:
            raise ValueError(f"sequence {number} writes no state block")
        blocks += step.blocks[:needed]
        block_begins.append(len(blocks))
        states += [step.read, *step.writes]
        state_begins.append(len(states))
        first = begins[-1]
        begins.append(first + count)
        positions.append(np.arange(step.past, step.past + count, dtype=np.int64))
        if step.every:
            rows += range(first, first + count)
        elif step.wants_logits:
            rows.append(first + count - 1)
    int32 = np.int32
    return StepBatch(
        token_ids=np.concatenate([np.asarray(step.token_ids, np.int64) for step in steps]),
        positions=np.concatenate(positions),
        past_lens=np.array([step.past for step in steps], int32),
        subsequence_begins=np.array(begins, int32),
        block_indices=np.array(blocks, int32),
        block_indices_begins=np.array(block_begins, int32),
        max_context_len=max(step.past + len(step.token_ids) for step in steps),
        logits_rows=np.array(rows, int32),
        state_blocks=np.array(states, int32) if hybrid else None,
        state_blocks_begins=np.array(state_begins, int32) if hybrid else None,
        cache_interval=np.array([step.interval for step in steps], int32) if hybrid else None,
    )
