"""The OpenVINO engine on two CPU stages: many requests at once, each as if it were alone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest

np = pytest.importorskip("numpy", reason="the OpenVINO engine needs numpy")
pytest.importorskip("openvino", reason="openvino is not installed: its engine is not tested")
pytest.importorskip("openvino_genai", reason="openvino_genai is not installed: no tokenizer")

from arcpp.cli import main
from arcpp.errors import BadInput
from arcpp_openvino import Engine, EngineOptions, FinishReason, Sampling, TooLong
from arcpp_openvino.options import ChainOptions
from arcpp_openvino.request import EngineClosed
from tests.support.openvino_chain import EXACT, HYBRID, expected, prompts

DEVICES, CUT = ("CPU", "CPU"), (4, 4)
LONG = 64  # tokens of the reference's continuations


def opened(blocks: int = 64, **options: object) -> Engine:
    """Two stages in float32; prompts above 64 tokens take several steps."""
    chain = ChainOptions(kv_blocks=blocks, **EXACT)
    asked = {"max_sequences": 4, "max_batch_tokens": 64, "chain": chain, **options}
    return Engine.from_folder(HYBRID, DEVICES, CUT, EngineOptions(**asked))


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with opened() as engine:
        yield engine


def tokens_of(engine: Engine, asked: list[list[int]], count: int) -> list[list[int]]:
    found = engine.generate_all(asked, Sampling(max_tokens=count, ignore_eos=True))
    return [list(one.token_ids) for one in found]


def check_given_back(engine: Engine) -> None:
    engine.close()
    stats = engine.stats()
    assert (stats.free_blocks, stats.free_slots) == (stats.kv_blocks, stats.state_slots)


def test_twelve_at_once_over_four_slots_give_the_reference(engine: Engine) -> None:
    assert tokens_of(engine, prompts(), LONG) == expected()


def test_sixteen_of_unequal_length_in_chunks_are_as_alone(engine: Engine) -> None:
    lengths = [1, 5, 31, 32, 33, 64, 65, 100, 127, 128, 129, 200, 2, 90, 150, 60]
    text = [token for prompt in prompts() for token in prompt]
    asked = [text[number : number + length] for number, length in enumerate(lengths)]
    alone = [tokens_of(engine, [prompt], 12)[0] for prompt in asked]
    assert tokens_of(engine, asked, 12) == alone


def test_preempted_requests_are_as_alone(engine: Engine) -> None:
    asked = [prompt[:20] for prompt in prompts()[:6]]
    alone = tokens_of(engine, asked, LONG)
    with opened(blocks=8) as small:
        assert tokens_of(small, asked, LONG) == alone
        assert small.stats().preemptions > 0
        check_given_back(small)


def test_two_steps_in_flight_are_as_one(engine: Engine) -> None:
    asked = prompts()[:8]
    with opened(microbatches=2) as busy:
        assert tokens_of(busy, asked, 24) == [output[:24] for output in expected()[:8]]


def test_a_prefix_is_not_computed_twice(engine: Engine) -> None:
    long = [token for prompt in prompts() for token in prompt][:150]
    first = tokens_of(engine, [long], 8)
    before = engine.stats()
    asked = [long, [*long, 7, 8, 9]]
    found = tokens_of(engine, asked, 8)
    after = engine.stats()
    assert found[0] == first[0]
    assert after.cached_tokens - before.cached_tokens == 2 * 128
    with opened(prefix_caching=False) as plain:
        assert tokens_of(plain, asked, 8) == found
        assert plain.stats().cached_tokens == 0


def test_text_streams_as_it_is_made(engine: Engine) -> None:
    prompt = json.loads((HYBRID.parent / "reference.json").read_text("utf-8"))["prompts"][0]
    pieces = list(engine.stream(prompt["prompt_ids"], Sampling(max_tokens=LONG, ignore_eos=True)))
    assert len(pieces) == LONG
    ids = [token for piece in pieces for token in piece.token_ids]
    assert "".join(piece.text for piece in pieces) == engine.tokenizer.decode(ids)

    async def streamed() -> list[int]:
        asked = engine.astream(prompt["prompt_ids"], Sampling(max_tokens=LONG, ignore_eos=True))
        return [token async for piece in asked for token in piece.token_ids]

    assert asyncio.run(streamed()) == ids == expected()[0]


def test_a_dropped_stream_is_cancelled(engine: Engine) -> None:
    stream = engine.stream("In the beginning", Sampling(max_tokens=1500, ignore_eos=True))
    next(stream)
    stream.close()
    tokens_of(engine, [[5]], 1)  # a step later
    assert engine.stats().finished["cancelled"] >= 1
    assert engine.stats().running == 0


def test_what_can_never_fit_is_refused_with_what_would(engine: Engine) -> None:
    with pytest.raises(TooLong, match=r"max_tokens: 2000 .*at most 1948 \(2048 tokens in all") as e:
        engine.generate([5] * 100, Sampling(max_tokens=2000))
    assert engine.generate([5] * 2040, Sampling(max_tokens=8, ignore_eos=True)).token_ids
    assert e.value.fits == 1948
    with pytest.raises(TooLong, match="prompt: 2048 tokens are too many: at most 2047"):
        engine.generate([5] * 2048, Sampling(max_tokens=1))


@pytest.mark.parametrize(
    ("prompt", "says"),
    [
        ("", "prompt: '' is empty"),
        ([], "is empty"),
        ([5, 4096], "4096 is no token id from 0 to 4095"),
        ([-1], "-1 is no token id"),
        ("\ud800", "UTF-8"),
    ],
)
def test_bad_prompts_are_one_line_and_the_next_one_works(
    engine: Engine, prompt: object, says: str
) -> None:
    with pytest.raises(BadInput, match=says):
        engine.generate(prompt, Sampling(max_tokens=1))  # type: ignore[arg-type]
    assert tokens_of(engine, [prompts()[0]], 4) == [expected()[0][:4]]


def test_drained_then_closed() -> None:
    engine = opened()
    stream = engine.stream(prompts()[0], Sampling(max_tokens=LONG, ignore_eos=True))
    engine.close(drain=None)
    pieces = list(stream)
    assert [token for piece in pieces for token in piece.token_ids] == expected()[0]
    assert pieces[-1].finish_reason is FinishReason.LENGTH
    with pytest.raises(EngineClosed):
        engine.generate("In the beginning")


def test_generate_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    where = [str(HYBRID), "--device", "CPU", "--device", "CPU", "--precision", "f32"]
    asked = ["--max-tokens", "8", "--temperature", "0"]
    assert main(["generate", *where, *asked, "--json", "In the beginning"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert main(["generate", *where, *asked, "In the beginning"]) == 0
    assert capsys.readouterr().out == found["text"] + "\n"
    assert (found["finish_reason"], len(found["token_ids"])) == ("length", 8)
    assert main(["generate", *where, "--max-tokens", "0", "x"]) == 1
    assert "max_tokens" in capsys.readouterr().err
    assert main(["generate", str(HYBRID), "--device", "GPU.7", "x"]) == 1
    assert "GPU.7" in capsys.readouterr().err
