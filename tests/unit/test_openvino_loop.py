"""The engine's loop over a chain whose tokens show any block or state that is not its own."""

from __future__ import annotations

import queue
import random
from collections.abc import Sequence
from typing import Any

import pytest

np = pytest.importorskip("numpy", reason="the OpenVINO engine needs numpy")
pytest.importorskip("openvino", reason="openvino is not installed: its engine is not tested")

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.fake_chain import VOCABULARY, FakeChain, right

from arcpp.errors import NonFinite
from arcpp.hooks import hooks_for
from arcpp.settings import read_settings
from arcpp.state import PoolSize, SlotPool
from arcpp.supervise import RestartPolicy
from arcpp_openvino.blocks import BlockPool
from arcpp_openvino.errors import stage_failed
from arcpp_openvino.loop import Loop
from arcpp_openvino.recovery import EngineEnds, Recovery
from arcpp_openvino.request import FinishReason, Piece, RequestFailed, Running
from arcpp_openvino.sampling import Sampling
from arcpp_openvino.scheduler import Limits, Scheduler

END = VOCABULARY  # no token of the fake's


class Words:
    """A tokenizer of numbers with spaces."""

    end_tokens = frozenset({END})

    def encode(self, text: str) -> list[int]:
        return [int(word) for word in text.split()]

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(f" {token}" for token in tokens)

    def chat(self, messages: Any) -> list[int]:
        raise NotImplementedError


class Rig:
    """A loop over a fake chain, to be used from a test's thread."""

    def __init__(
        self,
        *,
        blocks: int = 40,
        size: int = 4,
        slots: int = 4,
        snapshots: int = 2,
        hybrid: bool = True,
        budget: int = 4,
        microbatches: int = 1,
        tokens: int = 16,
    ) -> None:
        places = 1 + slots + snapshots if hybrid else 0
        self.chain = FakeChain(blocks, size, places)
        pool_size = PoolSize(slots, snapshots=snapshots)

        def pool() -> SlotPool | None:
            return SlotPool(self.chain.states, pool_size) if self.chain.states else None

        self.blocks = BlockPool(blocks, size)
        self.scheduler = Scheduler(self.blocks, Limits(slots, tokens, microbatches), pool())
        policy = RestartPolicy(budget, 1000.0, backoff=0.0)
        recovery = Recovery(self.chain, pool, policy, hooks_for(read_settings()))
        self.loop = Loop(
            self.chain, self.scheduler, Words(), recovery, hybrid=hybrid, vocab_size=VOCABULARY
        )
        self._number = 0

    def __enter__(self) -> Rig:
        self.loop.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.close(None)

    def ask(self, prompt: list[int], count: int, **more: Any) -> queue.SimpleQueue[Piece]:
        pieces: queue.SimpleQueue[Piece] = queue.SimpleQueue()
        self._number += 1
        sampling = Sampling(max_tokens=count, **more.pop("sampling", {}))
        self.loop.add(
            Running(
                f"r{self._number}", list(prompt), len(prompt), sampling, pieces.put,
                arrival=self._number, **more,
            )
        )  # fmt: skip
        return pieces


def whole(pieces: queue.SimpleQueue[Piece]) -> tuple[list[int], Piece]:
    """All tokens, and the last piece."""
    tokens: list[int] = []
    while True:
        piece = pieces.get(timeout=60)
        tokens += piece.token_ids
        if piece.finish_reason is not None:
            return tokens, piece


def check_given_back(rig: Rig) -> None:
    """Nothing is lent any more."""
    rig.blocks.check_integrity()
    assert rig.blocks.available == rig.blocks.count
    states = rig.scheduler.states
    if states is not None:
        states.check_integrity()
        assert states.available == states.size.slots


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    seed=st.integers(0, 10_000),
    hybrid=st.booleans(),
    blocks=st.integers(14, 40),
    slots=st.integers(1, 5),
    snapshots=st.integers(0, 3),
    microbatches=st.integers(1, 3),
    tokens=st.integers(5, 24),
)
def test_random_requests_get_what_they_get_alone(seed: int, **limits: Any) -> None:
    """Few blocks, shared beginnings, cancels: preemption, prefixes and reuse all happen."""
    chance = random.Random(seed)
    beginnings = [[chance.randrange(VOCABULARY) for _ in range(20)] for _ in range(2)]
    with Rig(**limits) as rig:
        asked = []
        for number in range(12):
            prompt = chance.choice(beginnings)[: chance.randint(1, 20)]
            prompt = prompt + [chance.randrange(VOCABULARY)] * chance.randint(0, 6)
            asked.append((prompt, chance.randint(1, 25), number))
            asked[-1] = (*asked[-1], rig.ask(*asked[-1][:2]))  # type: ignore[misc]
            if chance.random() < 0.2:
                rig.loop.cancel(f"r{chance.randint(1, number + 1)}")
        for prompt, count, _, pieces in asked:  # type: ignore[misc]
            tokens, last = whole(pieces)
            wanted = right(prompt, count)
            if last.finish_reason is FinishReason.CANCELLED:
                assert tokens == wanted[: len(tokens)]
            else:
                assert tokens == wanted
    check_given_back(rig)


def test_preemption_and_prefixes_happen() -> None:
    """Or the test above shows less than it seems to."""
    prompt = list(range(20))
    with Rig(blocks=18) as rig:
        first = rig.ask(prompt, 2)
        assert whole(first)[0] == right(prompt, 2)
        many = [rig.ask(prompt[: 18 + n], 30) for n in range(3)]
        for n, pieces in enumerate(many):
            assert whole(pieces)[0] == right(prompt[: 18 + n], 30)
    assert rig.scheduler.preemptions > 0
    assert rig.loop.counters.cached_tokens >= 16
    check_given_back(rig)


def test_a_stage_that_fails_costs_no_request_and_no_token() -> None:
    with Rig(microbatches=2) as rig:
        faults = {5: "device lost", 9: "values"}

        def fault(batch: Any) -> Exception | None:
            if faults.pop(rig.chain.steps, None) is None:
                return None
            if rig.chain.steps == 9:
                return NonFinite("logits")
            return stage_failed(RuntimeError("CL_OUT_OF_RESOURCES"), stage=1, device="GPU.1",
                                doing="step")  # fmt: skip

        rig.chain.fault = fault
        asked = [([n, n + 1, 3], rig.ask([n, n + 1, 3], 12)) for n in range(8)]
        for prompt, pieces in asked:
            assert whole(pieces)[0] == right(prompt, 12)
    assert rig.chain.restarts == [1, None]
    check_given_back(rig)


def test_a_request_that_kills_its_stage_fails_alone() -> None:
    with Rig(budget=3) as rig:

        def fault(batch: Any) -> Exception | None:
            if 66 not in batch.token_ids:
                return None
            return stage_failed(RuntimeError("it dies"), stage=0, device="CPU", doing="step")

        rig.chain.fault = fault
        good = [([n, n + 1, 3], rig.ask([n, n + 1, 3], 8)) for n in range(3)]
        bad = rig.ask([1, 66, 2], 8)
        for prompt, pieces in good:
            tokens, _ = whole(pieces)
            assert tokens == right(prompt, 8)
        _, last = whole(bad)
        assert last.finish_reason is FinishReason.ERROR
        assert isinstance(last.error, RequestFailed)
        assert last.error.request_id == "r4"
    check_given_back(rig)


def test_when_no_restart_is_left_everybody_hears_why() -> None:
    rig = Rig(budget=2)
    rig.chain.fault = lambda batch: stage_failed(
        RuntimeError("gone"), stage=0, device="GPU.0", doing="step"
    )
    with rig:
        asked = [rig.ask([n, 1], 4) for n in range(2)]
        for pieces in asked:
            assert isinstance(whole(pieces)[1].error, EngineEnds | RequestFailed)


def test_sampled_tokens_repeat_with_their_seed_whatever_else_runs() -> None:
    how = {"temperature": 3.0, "seed": 5}
    with Rig() as rig:
        alone = whole(rig.ask([1, 2, 3], 20, sampling=how))[0]
        crowd = [rig.ask([n, 2], 30) for n in range(3)]
        again = whole(rig.ask([1, 2, 3], 20, sampling=how))[0]
        other = whole(rig.ask([1, 2, 3], 20, sampling={**how, "seed": 6}))[0]
        for pieces in crowd:
            whole(pieces)
    assert alone == again != other


def test_text_follows_tokens_and_stop_tokens_are_no_text() -> None:
    tokens = right([5, 6], 9)
    stop = tokens[6]
    assert stop not in tokens[:6]
    with Rig() as rig:
        pieces = rig.ask([5, 6], 9, sampling={"stop_token_ids": (stop,)})
        text, reason = "", None
        while reason is None:
            piece = pieces.get(timeout=60)
            text, reason = text + piece.text, piece.finish_reason
    assert text == Words().decode(tokens[:6])
    assert reason is FinishReason.STOP


def test_a_late_request_ends_with_what_it_has() -> None:
    with Rig() as rig:
        _, last = whole(rig.ask([1], 5, deadline=0.0))
    assert last.finish_reason is FinishReason.DEADLINE
    check_given_back(rig)
