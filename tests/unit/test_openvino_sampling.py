"""What is asked about the choice of tokens: biases, penalties, least lengths, log-probabilities,
and texts that end an output."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

np = pytest.importorskip("numpy", reason="the OpenVINO engine needs numpy")
pytest.importorskip("openvino", reason="openvino is not installed: its engine is not tested")

from hypothesis import given
from hypothesis import strategies as st

from arcpp_openvino.sampler import Sampler, pick, probabilities
from arcpp_openvino.sampling import Sampling
from arcpp_openvino.text import OutputText

LOGITS = np.array([[4.0, 3.5, 3.0, -1.0, -2.0]], np.float32)


def greedy(count: int, prompt: Sequence[int] = (), **asked: object) -> list[int]:
    """So many choices from the same logits, which stay as they are."""
    sampler = Sampler(Sampling(**asked), 5, prompt, end_tokens=[0])  # type: ignore[arg-type]
    kept = LOGITS.copy()
    found = [pick(LOGITS, [sampler])[0].token for _ in range(count)]
    assert (kept == LOGITS).all()
    return found


def test_end_tokens_come_after_the_least_length() -> None:
    assert greedy(3, min_tokens=2) == [1, 1, 0]
    assert greedy(3, min_tokens=2, stop_token_ids=(1,)) == [2, 2, 0]


def test_a_bias_is_added() -> None:
    assert greedy(1, logit_bias={4: 6.5}) == [4]
    assert greedy(1, logit_bias={0: -100, 1: -100}) == [2]


def test_repetition_is_of_prompt_and_output() -> None:
    assert greedy(3, repetition_penalty=1.25) == [0, 1, 0]  # 4 / 1.25 = 3.2, 3.5 / 1.25 = 2.8
    assert greedy(1, [0, 1], repetition_penalty=1.4) == [2]


def test_presence_counts_once_and_frequency_every_time() -> None:
    assert greedy(4, presence_penalty=0.6) == [0, 1, 0, 0]  # 3.4, 2.9
    assert greedy(4, frequency_penalty=0.6) == [0, 1, 0, 2]  # 2.8, 2.9, then 3.0


def test_a_negative_logit_grows_as_in_openvino_genai() -> None:
    sampler = Sampler(Sampling(presence_penalty=1.5), 2)
    found = [pick(np.array([[-1.0, -0.5]], np.float32), [sampler])[0].token for _ in range(3)]
    assert found == [1, 1, 1]


def test_min_p_is_a_share_of_the_likeliest() -> None:
    ids, chances = probabilities(LOGITS[0], Sampling(temperature=1.0, min_p=0.5))
    assert ids.tolist() == [0, 1]  # exp(-0.5) = 0.61, exp(-1) = 0.37
    assert chances.tolist() == pytest.approx([0.6225, 0.3775], abs=1e-4)


@given(st.integers(0, 2**32 - 1), st.integers(0, 20))
def test_logprobs_are_of_the_models_own_distribution(seed: int, count: int) -> None:
    logits = np.random.default_rng(seed).normal(size=(1, 30)).astype(np.float32)
    asked = Sampling(temperature=0.5, seed=seed, logprobs=count, logit_bias={3: 50.0})
    (choice,) = pick(logits, [Sampler(asked, 30)])
    wide = logits[0].astype(np.float64)
    right = wide - np.log(np.exp(wide).sum())
    assert choice.token == 3
    assert choice.logprob is not None
    assert choice.logprob.logprob == pytest.approx(right[3])
    assert [token for token, _ in choice.logprob.top] == np.argsort(-right)[:count].tolist()


class Letters:
    """A tokenizer of code points."""

    end_tokens: frozenset[int] = frozenset()

    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(map(chr, tokens))

    def chat(self, messages: object) -> list[int]:
        raise NotImplementedError


@given(
    st.text("ab", max_size=30),
    st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
    st.booleans(),
    st.data(),
)
def test_text_ends_at_the_first_stop(
    text: str, stop: list[str], include: bool, data: st.DataObject
) -> None:
    output, said, at = OutputText(Letters(), stop, include_stop=include), "", 0
    while at < len(text) and not output.stopped:
        count = data.draw(st.integers(1, 3))
        said += output.add(Letters().encode(text[at : at + count]))
        at += count
    said += output.finish()
    places = [(text[:at].find(one), one) for one in stop if one in text[:at]]
    assert output.stopped == bool(places)
    if not places:
        assert said == text
        return
    first = min(place for place, _ in places)
    if include:
        assert said in {text[: place + len(one)] for place, one in places if place == first}
    else:
        assert said == text[:first]


def test_text_is_held_only_while_a_stop_may_begin_in_it() -> None:
    output = OutputText(Letters(), ["stop"])
    assert [output.add([ord(letter)]) for letter in "a sto sos"] == [
        "a", " ", "", "", "", "sto ", "", "so", "",
    ]  # fmt: skip
    assert output.finish() == "s"
