"""The main job, as a user does it: ``vllm serve`` with arcpp, asked over its socket."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

from tests.support import leftovers
from tests.support.generate import Continuation, departures
from tests.support.vllm_server import HYBRID_MODEL, VllmServer

pytestmark = pytest.mark.vllm

ROUNDING = 0.1  # logits; see test_vllm_tokens
ROWS = json.loads((HYBRID_MODEL.parent / "reference.json").read_text())["prompts"]
REFERENCE = [Continuation(row["output_ids"], row["margins"]) for row in ROWS]


@pytest.fixture(scope="module")
def client(hybrid_server: VllmServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=hybrid_server.url, api_key="none", timeout=300)


def _complete(client: openai.OpenAI, prompt: list[int], *, stream: bool) -> list[int]:
    arguments = {
        "model": "model", "prompt": prompt, "max_tokens": 64, "temperature": 0, "stream": stream,
        "extra_body": {"ignore_eos": True, "return_token_ids": True},
    }  # fmt: skip
    reply = client.completions.create(**arguments)
    if not stream:
        return list(reply.choices[0].token_ids)
    return [token for chunk in reply for token in (chunk.choices[0].token_ids or [])]


def test_chat_answers(client: openai.OpenAI) -> None:
    """The template only joins contents, so a chat continues the text, as the completion does."""
    row = ROWS[1]
    chat = client.chat.completions.create(
        model="model",
        messages=[{"role": "user", "content": row["prompt"]}],
        max_tokens=64,
        temperature=0,
        extra_body={"ignore_eos": True},
    )
    assert chat.choices[0].message.content == row["output"]
    assert chat.usage is not None
    assert chat.usage.completion_tokens == 64


def test_streamed_chat_is_the_same_text_in_pieces(client: openai.OpenAI) -> None:
    row = ROWS[1]
    stream = client.chat.completions.create(
        model="model",
        messages=[{"role": "user", "content": row["prompt"]}],
        max_tokens=64,
        temperature=0,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    pieces = [chunk.choices[0].delta.content or "" for chunk in stream]
    assert "".join(pieces) == row["output"]
    assert sum(bool(piece) for piece in pieces) > 32


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_twelve_prompts_one_by_one(client: openai.OpenAI, stream: bool) -> None:
    """Prompts up to 700 tokens against 256 per step: chunked prefill over two stages."""
    found = [_complete(client, row["prompt_ids"], stream=stream) for row in ROWS]
    rounded, wrong = departures(REFERENCE, [Continuation(ids, []) for ids in found], ROUNDING)
    print(f"one by one, stream={stream}: {rounded} of 12 streams left by rounding")
    assert not wrong


def test_eight_at_once_of_unequal_length(client: openai.OpenAI) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda row: _complete(client, row["prompt_ids"], stream=True), ROWS))
    rounded, wrong = departures(REFERENCE, [Continuation(ids, []) for ids in found], ROUNDING)
    print(f"eight at once: {rounded} of 12 streams left by rounding")
    assert not wrong


def test_plan_and_stages_are_in_the_log(hybrid_server: VllmServer) -> None:
    text = hybrid_server.text()
    assert text.count("arcpp: the plan for") == 1  # said once, not by every stage
    for stage in (0, 1):
        assert text.count(f"arcpp: stage {stage} on cpu holds layers") == 1


def test_nothing_listens_beyond_loopback(hybrid_server: VllmServer) -> None:
    addresses = leftovers.listening(hybrid_server.session)
    assert len(addresses) > 1  # the API and gloo
    assert {address.rpartition(":")[0] for address in addresses} <= {"127.0.0.1", "::1"}


def test_metrics_of_the_link(client: openai.OpenAI, hybrid_server: VllmServer) -> None:
    before = hybrid_server.metrics("arcpp_link")
    _complete(client, ROWS[1]["prompt_ids"], stream=False)
    after = hybrid_server.metrics("arcpp_link")
    assert len(after) == len(before) == 2 * 5
    grown = {key: after[key][0] - before[key][0] for key in after}
    for end in ("send", "receive"):
        assert grown["arcpp_link_hops_total", end] >= 64  # one a token
        assert grown["arcpp_link_bytes_total", end] >= 64 * 2
        assert grown["arcpp_link_verify_failures_total", end] == 0
        value, labels = after["arcpp_link_info", end]
        assert (value, labels["verification"], labels["pinning"]) == (1, "descriptor", "host")
        _, labels = after["arcpp_link_hops_total", end]
        assert labels == {
            "link": "stage0->stage1", "end": end, "kind": "ring", "model_name": "model",
        }  # fmt: skip
    assert grown["arcpp_link_wait_seconds_total", "receive"] > 0
    for name in ("arcpp_link_hops_total", "arcpp_link_bytes_total"):
        assert after[name, "send"][0] == after[name, "receive"][0]
    # vLLM's own are still there, under the same name of the model.
    own = hybrid_server.metrics("vllm:generation_tokens_total").values()
    assert [labels["model_name"] for _, labels in own] == ["model"]


def test_ctrl_c_leaves_nothing(hybrid_server: VllmServer) -> None:
    """Last in this module: it stops the server."""
    code = hybrid_server.stop()
    assert code == 0
    assert not hybrid_server.left, hybrid_server.left
