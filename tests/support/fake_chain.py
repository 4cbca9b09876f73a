"""A chain without a model, whose next token depends on everything a real one's does.

KV tables hold token ids, state tables a running sum of them: a block or a state that is another
request's, or out of date, gives another token. ``right`` computes the same without tables.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from arcpp.state import StateTables
from arcpp_openvino.batch import StepBatch

VOCABULARY = 97
_PRIME = 1_000_003


def right(prompt: list[int], count: int) -> list[int]:
    """``count`` tokens after ``prompt``."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(_next(tokens, _rolled(0, tokens)))
    return tokens[len(prompt) :]


def _rolled(state: int, tokens: list[int]) -> int:
    for token in tokens:
        state = (state * 31 + token + 1) % _PRIME
    return state


def _next(tokens: list[int], state: int) -> int:
    return (sum(index * token for index, token in enumerate(tokens, 1)) + state) % VOCABULARY


class _States(StateTables):
    """One number per place, dirty at first."""

    device, arrays = "fake", ()

    def __init__(self, places: int) -> None:
        self.places, self.held = places, [7] * places

    def zero(self, places: Sequence[int]) -> None:
        for place in places:
            self.held[place] = 0

    def are_zero(self, places: Sequence[int]) -> bool:
        return all(self.held[place] == 0 for place in places)

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        for source, target in pairs:
            self.held[target] = self.held[source]

    def read(self, place: int) -> bytes:
        return self.held[place].to_bytes(8, "little")

    def write(self, place: int, raw: bytes) -> None:
        self.held[place] = int.from_bytes(raw, "little")


class FakeChain:
    """blocks of ``size`` tokens, ``places`` of state (0: a dense model)."""

    def __init__(self, blocks: int, size: int, places: int) -> None:
        self.size, self.places = size, places
        self.kv = np.full((blocks, size), -1)
        self.states = _States(places) if places else None
        self._flights: dict[int, StepBatch] = {}
        self.restarts: list[int | None] = []
        self.steps = 0
        #: Asked about every step: an error to raise, or None.
        self.fault: Callable[[StepBatch], Exception | None] = lambda batch: None

    def submit(self, batch: StepBatch, microbatch: int = 0) -> None:
        assert microbatch not in self._flights
        self._flights[microbatch] = batch

    def collect(self, microbatch: int = 0, timeout: float | None = None) -> np.ndarray:
        assert timeout is not None
        self._fail_if_told(self._flights[microbatch])
        batch, rows = self._flights.pop(microbatch), []
        self.steps += 1
        wanted = set(batch.logits_rows.tolist())
        for number in range(len(batch.past_lens)):
            rows += self._sequence(batch, number, wanted)
        return np.array(rows, np.float32).reshape(-1, VOCABULARY)

    def _fail_if_told(self, batch: StepBatch) -> None:
        error = self.fault(batch)
        if error is not None:
            raise error

    def _sequence(self, batch: StepBatch, number: int, wanted: set[int]) -> list[np.ndarray]:
        first, end = batch.subsequence_begins[number : number + 2]
        blocks = batch.block_indices[slice(*batch.block_indices_begins[number : number + 2])]
        past, new = int(batch.past_lens[number]), batch.token_ids[first:end].tolist()
        assert batch.positions[first:end].tolist() == list(range(past, past + len(new)))
        for place, token in enumerate(new, past):
            self.kv[blocks[place // self.size], place % self.size] = token
        context = self.kv[blocks].reshape(-1)[: past + len(new)].tolist()
        state = 0
        if self.states is not None:
            read, write = batch.state_blocks[slice(*batch.state_blocks_begins[number : number + 2])]
            state = self.states.held[write] = _rolled(self.states.held[read], new)
        else:
            state = _rolled(0, context)
        if end - 1 not in wanted:
            return []
        row = np.zeros(VOCABULARY)
        row[_next(context, state)] = 1
        return [row]

    def restart(self, stage: int | None = None, timeout: float | None = None) -> None:
        assert timeout is not None
        self.restarts.append(stage)
        self.kv[:] = -1
        self._flights.clear()
        if self.places:
            self.states = _States(self.places)
