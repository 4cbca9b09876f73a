"""The same tokens as openvino_genai's pipelines, in float32: greedy, and where answers end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

np = pytest.importorskip("numpy", reason="the OpenVINO engine needs numpy")
ov = pytest.importorskip("openvino", reason="openvino is not installed: its engine is not tested")
genai = pytest.importorskip("openvino_genai", reason="openvino_genai is not installed")

from arcpp_openvino import Engine, EngineOptions, Sampling
from arcpp_openvino.options import ChainOptions
from tests.support.openvino_chain import EXACT, HYBRID, prompts

SMOLLM2 = Path(__file__).resolve().parents[2] / ".bench-models" / "smollm2"
ON_CPU = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
QUESTIONS = (
    "What is the capital of France?",
    "Write a short poem about the sea.",
    "Explain in one sentence why the sky is blue.",
    "List three prime numbers.",
    "Who wrote Hamlet?",
)


def engine(folder: Path, partition: list[int]) -> Engine:
    options = EngineOptions(
        max_sequences=8,
        max_batch_tokens=64,
        max_model_len=1024,
        chain=ChainOptions(kv_blocks=128, **EXACT),
    )
    return Engine.from_folder(folder, ("CPU",) * len(partition), partition, options)


def config(tokens: int) -> Any:
    asked = genai.GenerationConfig()
    asked.max_new_tokens, asked.do_sample = tokens, False
    return asked


@pytest.fixture(scope="module")
def pipeline() -> Any:
    scheduling = genai.SchedulerConfig()
    scheduling.cache_size = 1
    return genai.ContinuousBatchingPipeline(str(HYBRID), scheduling, "CPU", ON_CPU)


@pytest.fixture(scope="module")
def ours() -> Iterator[Engine]:
    with engine(HYBRID, [3, 5]) as made:
        yield made


def test_the_bundled_model_is_as_with_the_continuous_batching_pipeline(
    pipeline: Any, ours: Engine
) -> None:
    asked = config(48)
    asked.apply_chat_template = False  # the export has a vision tower, and would be asked as one
    texts = [ours.tokenizer.decode(prompt) for prompt in prompts()]
    answers = pipeline.generate(texts, [asked] * len(texts))
    found = ours.generate_all(texts, Sampling(max_tokens=48))
    assert [one.text for one in found] == [answer.m_generation_ids[0] for answer in answers]


OPTIONS = {
    "repetition": {"repetition_penalty": 1.3},
    "presence": {"presence_penalty": 1.5},
    "frequency": {"frequency_penalty": 0.7},
    "all three": {"repetition_penalty": 1.1, "presence_penalty": 0.5, "frequency_penalty": -0.4},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options_are_as_with_the_continuous_batching_pipeline(
    name: str, pipeline: Any, ours: Engine
) -> None:
    mine = OPTIONS[name]
    asked = config(48)
    asked.apply_chat_template = False
    for option, value in mine.items():
        setattr(asked, option, value)
    texts = [ours.tokenizer.decode(prompt) for prompt in prompts()]
    answers = pipeline.generate(texts, [asked] * len(texts))
    found = ours.generate_all(texts, Sampling(max_tokens=48, **mine))
    plain = ours.generate_all(texts, Sampling(max_tokens=48))
    assert [one.text for one in found] == [answer.m_generation_ids[0] for answer in answers]
    assert found != plain, "the option does something"


@pytest.mark.skipif(
    not SMOLLM2.exists(),
    reason="SmolLM2 is not in .bench-models: see tests/bench/openvino_models.py",
)
@pytest.mark.parametrize("partition", [[30], [12, 18]], ids=str)
def test_smollm2_answers_as_with_the_llm_pipeline(partition: list[int]) -> None:
    pipeline = genai.LLMPipeline(str(SMOLLM2), "CPU", **ON_CPU)
    tokenizer = pipeline.get_tokenizer()
    with engine(SMOLLM2, partition) as ours:
        chats = [ours.tokens([{"role": "user", "content": text}]) for text in QUESTIONS]
        for text, chat in zip(QUESTIONS, chats, strict=True):
            templated = tokenizer.apply_chat_template(
                [{"role": "user", "content": text}], add_generation_prompt=True
            )
            encoded = tokenizer.encode(templated, add_special_tokens=False).input_ids
            assert chat == encoded.data.reshape(-1).tolist()
        found = ours.generate_all(chats, Sampling(max_tokens=80))
    for chat, answer in zip(chats, found, strict=True):
        wanted = pipeline.generate(ov.Tensor(np.array([chat], np.int64)), config(80))
        assert list(answer.token_ids) == list(wanted.tokens[0])
    assert "Paris" in found[0].text
