"""Parts of the OpenVINO engine that need no model: blocks, sampling, text, options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

np = pytest.importorskip("numpy", reason="the OpenVINO engine needs numpy")
pytest.importorskip("openvino", reason="openvino is not installed: its engine is not tested")

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from arcpp.errors import BadInput, NonFinite
from arcpp_openvino.blocks import ROOT, BlockPool
from arcpp_openvino.engine import EngineOptions
from arcpp_openvino.request import TooLong
from arcpp_openvino.sampler import Sampler, pick, probabilities
from arcpp_openvino.sampling import Sampling
from arcpp_openvino.text import Detokenizer


class BlocksAgainstAnOracle(RuleBasedStateMachine):
    """Users of each block, and what it holds, as a list and a dictionary know them."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(6, 2)
        self.held: list[list[int]] = []  # what each request holds
        self.prompts: list[tuple[int, ...]] = []
        self.said: dict[int, tuple[int, ...]] = {}  # block -> all tokens up to its end

    @rule(words=st.lists(st.integers(0, 1), min_size=2, max_size=8))
    def begin(self, words: list[int]) -> None:
        """A request whose blocks are shared as far as known, and then computed."""
        tokens = tuple(words[: len(words) // 2 * 2])
        found = self.pool.match(tokens)
        for place, (block, _) in enumerate(found, 1):
            assert self.said[block] == tokens[: 2 * place]
        before = self.pool.available
        shared = [block for block, _ in found]
        idle = self.pool.idle_among(shared)
        missing = len(tokens) // 2 - len(found)
        if missing > before - idle:
            return
        self.pool.share(shared)
        lent = self.pool.lend(missing)
        assert lent is not None
        assert not set(lent) & {block for blocks in self.held for block in blocks}
        content = found[-1][1] if found else ROOT
        for place, block in enumerate(lent, len(found) + 1):
            self.said[block] = tokens[: 2 * place]
            content = self.pool.note(block, content, tokens[2 * place - 2 : 2 * place])
        self.held.append([*shared, *lent])
        assert self.pool.available == before - idle - missing

    @precondition(lambda self: self.held)
    @rule(number=st.integers(0, 99))
    def end(self, number: int) -> None:
        self.pool.release(self.held.pop(number % len(self.held)))

    @rule()
    def refuse(self) -> None:
        before = self.pool.available
        assert self.pool.lend(before + 1) is None
        with pytest.raises(ValueError, match="not all in use"):
            self.pool.release([block for block in range(6) if not self._users(block)] or [0] * 99)
        assert self.pool.available == before

    def _users(self, block: int) -> int:
        return sum(blocks.count(block) for blocks in self.held)

    @rule()
    def lose_everything(self) -> None:
        for blocks in self.held:
            self.pool.release(blocks)
        self.held.clear()
        self.pool.forget_all()
        assert self.pool.match((0, 0)) == self.pool.match((1, 1)) == []

    @invariant()
    def whole(self) -> None:
        self.pool.check_integrity()
        used = {block for blocks in self.held for block in blocks}
        assert self.pool.available == 6 - len(used)


TestBlocks = BlocksAgainstAnOracle.TestCase


@given(st.integers(0, 2**32 - 1))
def test_greedy_and_drawn_rows_do_not_disturb_each_other(seed: int) -> None:
    chance = np.random.default_rng(seed)
    logits = chance.normal(size=(5, 50)).astype(np.float32)
    how = [Sampling(), Sampling(temperature=0.7, top_k=3), Sampling(temperature=2.0, top_p=0.4)] * 2
    kept = logits.copy()
    rows = [Sampler(replace(one, seed=seed), 50) for one in how[:5]]
    found = [choice.token for choice in pick(logits, rows)]
    assert (logits == kept).all()
    assert found[0] == logits[0].argmax()
    assert found[3] == logits[3].argmax()
    assert found[1] in np.argsort(-logits[1])[:3]
    ids, chances = probabilities(logits[2], how[2])
    assert found[2] in ids
    assert chances.sum() == pytest.approx(1)
    assert (np.diff(chances) <= 0).all()
    everybody = np.exp(logits[2].astype(np.float64) / 2)
    everybody /= everybody.sum()
    order = np.argsort(-everybody)
    fewest = int(np.searchsorted(np.cumsum(everybody[order]), 0.4)) + 1
    assert ids.tolist() == order[:fewest].tolist()


def test_draws_follow_their_probabilities() -> None:
    """Chi-square of 20,000 draws over four tokens: 16.3 is passed once in a thousand times."""
    logits = np.log(np.array([[0.5, 0.3, 0.15, 0.05]], np.float32))
    sampler = Sampler(Sampling(temperature=1.0, seed=3), 4)
    counts = np.zeros(4)
    for _ in range(20_000):
        counts[pick(logits, [sampler])[0].token] += 1
    wanted = 20_000 * np.array([0.5, 0.3, 0.15, 0.05])
    assert ((counts - wanted) ** 2 / wanted).sum() < 16.3


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_logits_that_are_no_numbers_are_a_fault(wrong: float) -> None:
    logits = np.zeros((2, 9), np.float32)
    logits[1, 4] = wrong
    with pytest.raises(NonFinite, match="logits"):
        pick(logits, [Sampler(Sampling(), 9)] * 2)


class Bytes:
    """A tokenizer whose tokens are the bytes of UTF-8."""

    end_tokens: frozenset[int] = frozenset()

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, tokens: Sequence[int]) -> str:
        return bytes(tokens).decode(errors="replace")

    def chat(self, messages: object) -> list[int]:
        raise NotImplementedError


@given(st.text(max_size=40), st.data())
def test_characters_come_whole_and_once(text: str, data: st.DataObject) -> None:
    tokens = Bytes().encode(text)
    stream, said, at = Detokenizer(Bytes()), [], 0
    while at < len(tokens):
        count = data.draw(st.integers(1, 3))
        said.append(stream.add(tokens[at : at + count]))
        at += count
    said.append(stream.finish())
    assert "".join(said) == text
    assert not any("\ufffd" in part for part in said if "\ufffd" not in text)


def test_half_a_character_at_the_end_is_said_to_be_one() -> None:
    stream = Detokenizer(Bytes())
    assert stream.add("é".encode()[:1]) == ""
    assert stream.finish() == "\ufffd"


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_tokens": 0},
        {"max_tokens": True},
        {"max_tokens": 1.5},
        {"temperature": -1.0},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"temperature": "hot"},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"top_k": -1},
        {"seed": -1},
        {"stop_token_ids": (-1,)},
        {"min_tokens": -1},
        {"min_p": 1.5},
        {"repetition_penalty": 0},
        {"presence_penalty": 2.5},
        {"frequency_penalty": float("nan")},
        {"logit_bias": {-1: 1.0}},
        {"logit_bias": {1: 101.0}},
        {"stop": ("",)},
        {"logprobs": -1},
    ],
    ids=str,
)
def test_what_cannot_be_sampled_is_one_line(wrong: dict[str, object]) -> None:
    (name,) = wrong
    with pytest.raises(BadInput, match=f"^{name}: .* is not ") as caught:
        Sampling(**wrong)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "wrong", [{"max_sequences": 0}, {"max_waiting": -1}, {"max_batch_tokens": 7}], ids=str
)
def test_options_that_cannot_be_are_one_line(wrong: dict[str, int]) -> None:
    with pytest.raises(BadInput, match="is too few"):
        EngineOptions(**wrong)


def test_too_long_says_what_fits() -> None:
    error = TooLong(100, 500, 300, "max_model_len")
    assert (error.fits, error.limit, error.prompt_tokens) == (200, 300, 100)
    assert "at most 200" in str(error)
    assert TooLong(300, 1, 300, "max_model_len").fits == 0
