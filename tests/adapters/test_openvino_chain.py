"""Stages on the CPU give what the whole model gives: every cut, one to four stages, any batch."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

np = pytest.importorskip("numpy", reason="the OpenVINO engine needs numpy")
pytest.importorskip("openvino", reason="openvino is not installed: its engine is not tested")

from arcpp.errors import StateCorrupt
from arcpp.state import PoolSize, SlotPool
from arcpp_openvino.batch import SequenceStep, step_batch
from arcpp_openvino.chain import Chain
from tests.support.openvino_chain import (
    HYBRID,
    after,
    batch_of,
    expected,
    greedy,
    logits_of,
    open_chain,
    prompts,
    requests,
)

SHORT = [0, 3]  # two prompts of unequal length


@pytest.fixture(scope="module")
def whole() -> Iterator[Chain]:
    """The model as one stage."""
    with open_chain(HYBRID, [8]) as chain:
        yield chain


@pytest.fixture(scope="module")
def halves() -> Iterator[Chain]:
    """Two stages, two microbatches."""
    with open_chain(HYBRID, [4, 4], microbatches=2) as chain:
        yield chain


def test_one_stage_gives_the_reference(whole: Chain) -> None:
    assert greedy(whole, prompts(), 64) == expected()


def test_two_stages_give_the_reference(halves: Chain) -> None:
    assert greedy(halves, prompts(), 64) == expected()


@pytest.mark.parametrize("partition", [[3, 2, 3], [1, 2, 4, 1]], ids=str)
def test_more_stages_give_the_reference(partition: list[int]) -> None:
    with open_chain(HYBRID, partition) as chain:
        assert greedy(chain, prompts(), 32) == [output[:32] for output in expected()]


@pytest.mark.parametrize("cut", [1, 2, 3, 5, 6, 7])
def test_every_cut_changes_no_bit(whole: Chain, cut: int) -> None:
    with open_chain(HYBRID, [cut, 8 - cut]) as chain:
        got, right = (logits_of(one, prompts()[:6], 3) for one in (chain, whole))
    assert np.array_equal(got, right)


def test_a_stage_for_every_layer(whole: Chain) -> None:
    with open_chain(HYBRID, [1] * 8) as chain:
        got, right = (logits_of(one, prompts()[:6], 3) for one in (chain, whole))
    assert np.array_equal(got, right)


def test_a_batch_gives_each_request_what_it_gets_alone(halves: Chain) -> None:
    for number in SHORT:
        assert greedy(halves, [prompts()[number]], 64) == [expected()[number]]


@pytest.mark.parametrize("chunk", [1, 7, 32, 100])
def test_a_prompt_in_chunks_gives_the_same(halves: Chain, chunk: int) -> None:
    ids, right = prompts()[:4], [output[:16] for output in expected()[:4]]
    assert greedy(halves, ids, 16, chunk) == right


def test_steps_of_two_microbatches_are_in_flight_at_once(halves: Chain) -> None:
    asked = requests(halves, prompts(), 16)
    groups = asked[:6], asked[6:]
    for _ in range(16):
        for number, group in enumerate(groups):
            halves.submit(batch_of(halves, group), number)
        for number, group in enumerate(groups):
            after(group, halves.collect(number))
    assert [request.output for request in asked] == [output[:16] for output in expected()]


def test_a_used_state_block_reads_as_zero_through_the_zero_block(halves: Chain) -> None:
    """By a pool, with prompts one after the other in the only slot, which is never zeroed."""
    assert halves.states is not None
    pool = SlotPool(halves.states, PoolSize(1))
    for number in (3, 0, 5):
        slot, past, output = pool.acquire(number), 0, []
        todo = list(prompts()[number])
        while len(output) < 16:
            window = pool.step(slot)
            step = SequenceStep(todo, past, range(60), window.read, window.writes)
            logits = halves.run(step_batch([step], 32, hybrid=True))
            past, todo = past + len(todo), [int(logits[0].argmax())]
            output += todo
        assert output == expected()[number][:16]
        pool.release(slot)
    pool.check_integrity()
    halves.check_integrity()


def test_a_dirty_start_gives_other_logits(halves: Chain) -> None:
    """What the zero block is for: without it the last request's state shows."""
    first, second = (SequenceStep(prompts()[number], 0, range(60), 0, (1,)) for number in (3, 0))
    dirty = SequenceStep(prompts()[0], 0, range(60), 1, (1,))
    right = halves.run(step_batch([second], 32, hybrid=True)).copy()
    halves.run(step_batch([first], 32, hybrid=True))
    wrong = halves.run(step_batch([dirty], 32, hybrid=True))
    assert abs(wrong - right).max() > 0.1


def test_drafts_are_taken_back_by_reading_an_earlier_state(halves: Chain) -> None:
    """Four tokens with a state each; two stay, and what follows is as if only two had come."""
    ids = prompts()[2]
    run = [SequenceStep(ids, 0, range(60), 0, (1,))]
    halves.run(step_batch(run, 32, hybrid=True))
    drafts = [17, 9, 200, 300]
    four = SequenceStep(drafts, len(ids), range(60), 1, (2, 3, 4, 5), interval=1, every=True)
    several = halves.run(step_batch([four], 32, hybrid=True)).copy()
    back = SequenceStep([77], len(ids) + 2, range(60), 3, (3,))
    got = halves.run(step_batch([back], 32, hybrid=True)).copy()
    plain = SequenceStep([*ids, 17, 9, 77], 0, range(60), 0, (6,), every=True)
    right = halves.run(step_batch([plain], 32, hybrid=True))
    assert several.shape == (4, halves.profile.vocab_size)
    assert abs(several[:2] - right[-3:-1]).max() < 1e-4
    assert abs(got[0] - right[-1]).max() < 1e-4


def test_only_rows_that_are_asked_for_get_logits(whole: Chain) -> None:
    quiet = SequenceStep(prompts()[0], 0, [0, 1], 0, (1,), wants_logits=False)
    loud = SequenceStep(prompts()[1], 0, [2, 3, 4], 0, (2,))
    assert whole.run(step_batch([quiet], 32, hybrid=True)).shape == (0, 4096)
    both = whole.run(step_batch([quiet, loud], 32, hybrid=True)).copy()
    alone = whole.run(step_batch([loud], 32, hybrid=True))
    assert both.shape == (1, 4096)
    assert abs(both - alone).max() < 1e-4


def test_a_step_larger_than_was_prepared_for_runs_too(whole: Chain) -> None:
    with open_chain(HYBRID, [4, 4], max_batch_tokens=16, max_sequences=2, state_blocks=13) as small:
        got, right = (logits_of(one, prompts()[:4], 2) for one in (small, whole))
    assert np.array_equal(got, right)


def test_a_written_zero_block_is_noticed() -> None:
    with open_chain(HYBRID, [4, 4]) as chain:
        chain.run(step_batch([SequenceStep([5, 6], 0, [0], 0, (0,))], 32, hybrid=True))
        with pytest.raises(StateCorrupt, match=r"zero block of stage 0 on CPU .* stage 1"):
            chain.check_integrity()


def test_what_the_chain_says_of_itself(halves: Chain) -> None:
    profile = halves.profile
    assert profile.layer_kinds == (*["linear_attention"] * 3, "attention") * 2
    assert (profile.vocab_size, profile.block_size, profile.kv_blocks) == (4096, 32, 128)
    assert (profile.state_blocks, profile.hybrid) == (13, True)
    kv = 128 * 2 * 2 * 32 * 64 * 4  # blocks, keys and values, heads, tokens, size, float32
    state = 13 * 3 * (640 * 4 + 6 * 64 * 64) * 4  # places, layers, window and matrix, float32
    assert [stage.table_bytes() for stage in halves.stages] == [(kv, state)] * 2


def test_microbatches_are_used_in_turn(halves: Chain) -> None:
    batch = step_batch([SequenceStep([5], 0, [0], 0, (1,))], 32, hybrid=True)
    with pytest.raises(ValueError, match="no step in flight"):
        halves.collect(1)
    halves.submit(batch, 1)
    with pytest.raises(ValueError, match="collect it first"):
        halves.submit(batch, 1)
    assert halves.collect(1).shape == (1, 4096)
