"""`arcpp gateway`: a real server over real sockets, asked with the official client."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytest.importorskip("openvino_genai", reason="openvino_genai is not installed: no gateway")
pytest.importorskip("fastapi", reason="fastapi is not installed: no gateway")

import httpx
import openai

from arcpp_openvino import Engine, EngineOptions, Sampling
from arcpp_openvino.options import ChainOptions
from tests.support.openvino_chain import EXACT, HYBRID, expected, prompts
from tests.support.vllm_server import free_port

KEY = "a-key-of-ours"
SLOTS = 4


class Gateway:
    """The command in a process of its own."""

    def __init__(self, *arguments: str) -> None:
        self.port = free_port()
        code = "import sys; from arcpp.cli import main; sys.exit(main())"
        command = [
            sys.executable, "-c", code, "gateway", str(HYBRID), "--device", "CPU", "--device",
            "CPU", "--precision", "f32", "--name", "kjv", "--port", str(self.port),
            "--max-num-seqs", str(SLOTS), *arguments,
        ]  # fmt: skip
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.url = f"http://127.0.0.1:{self.port}"
        self.client = openai.OpenAI(base_url=f"{self.url}/v1", api_key=KEY, max_retries=0)

    def wait(self) -> None:
        for _ in range(600):
            assert self.process.poll() is None, self.process.communicate()[0]
            try:
                if httpx.get(f"{self.url}/health").status_code == 200:
                    return
            except httpx.TransportError:
                time.sleep(0.2)
        raise TimeoutError

    def metric(self, name: str) -> float:
        text = httpx.get(f"{self.url}/metrics").text
        return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name))

    def post(self, body: Any, path: str = "/v1/completions", **headers: str) -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        allowed = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
        return httpx.post(
            f"{self.url}{path}", content=content, headers={**allowed, **headers}, timeout=60
        )


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    key = tmp_path_factory.mktemp("key") / "key"
    key.write_text(f"{KEY}\n")
    key.chmod(0o600)
    limits = ("--max-waiting", "40", "--max-body", "200000")
    gateway = Gateway(*limits, "--api-key-file", str(key))
    try:
        gateway.wait()
        yield gateway
    finally:
        gateway.process.kill()
        gateway.process.wait()


@pytest.fixture(scope="module")
def texts() -> list[str]:
    """What the engine itself answers to the reference's prompts."""
    options = EngineOptions(
        max_sequences=SLOTS, max_model_len=1024, chain=ChainOptions(kv_blocks=128, **EXACT)
    )
    with Engine.from_folder(HYBRID, ("CPU", "CPU"), None, options) as engine:
        found = engine.generate_all(prompts(), Sampling(max_tokens=24, ignore_eos=True))
        assert [list(one.token_ids) for one in found] == [ids[:24] for ids in expected()]
        return [one.text for one in found]


def ask(gateway: Gateway, number: int, **more: Any) -> Any:
    return gateway.client.completions.create(
        model="kjv", prompt=prompts()[number], max_tokens=24, temperature=0,
        extra_body={"ignore_eos": True}, **more,
    )  # fmt: skip


def test_streams_and_whole_answers_are_the_engines_own(gateway: Gateway, texts: list[str]) -> None:
    whole = ask(gateway, 0)
    assert whole.choices[0].text == texts[0]
    assert whole.choices[0].finish_reason == "length"
    assert whole.usage.completion_tokens == 24
    chunks = list(ask(gateway, 1, stream=True, stream_options={"include_usage": True}))
    assert "".join(each.choices[0].text for each in chunks[:-1]) == texts[1]
    assert len(chunks) == 25  # a token each, and the counts
    assert chunks[-1].usage.total_tokens == len(prompts()[1]) + 24


def test_a_stop_text_ends_the_answer(gateway: Gateway, texts: list[str]) -> None:
    end = texts[0].split()[5]
    wanted = texts[0][: texts[0].index(end)]
    whole = ask(gateway, 0, stop=[end, "never said"])
    assert (whole.choices[0].text, whole.choices[0].finish_reason) == (wanted, "stop")
    chunks = list(ask(gateway, 0, stream=True, stop=end))
    assert "".join(each.choices[0].text for each in chunks) == wanted
    assert chunks[-1].choices[0].finish_reason == "stop"
    banned = {str(prompt): -100 for prompt in expected()[0][:1]}
    assert ask(gateway, 0, logit_bias=banned).choices[0].text != texts[0]


def test_32_streams_at_once(gateway: Gateway, texts: list[str]) -> None:
    def stream(number: int) -> str:
        return "".join(c.choices[0].text for c in ask(gateway, number % 12, stream=True))

    with ThreadPoolExecutor(32) as clients:
        found = list(clients.map(stream, range(32)))
    assert found == [texts[number % 12] for number in range(32)]


def test_a_chat_under_both_paths(gateway: Gateway) -> None:
    asked = {"messages": [{"role": "user", "content": "In the beginning"}], "max_tokens": 8,
             "temperature": 0}  # fmt: skip
    first = gateway.post(asked, "/v1/chat/completions").json()
    third = gateway.post(asked, "/v3/chat/completions").json()
    assert first["choices"] == third["choices"]
    assert first["choices"][0]["message"]["role"] == "assistant"
    chat = gateway.client.chat.completions.create(model="kjv", stream=True, **asked)
    said = "".join(chunk.choices[0].delta.content or "" for chunk in chat)
    assert said == first["choices"][0]["message"]["content"]
    assert [model.id for model in gateway.client.models.list()] == ["kjv"]


def test_a_client_that_goes_frees_its_slot(gateway: Gateway) -> None:
    before = gateway.metric('arcpp_finished_total{reason="cancelled"}')
    many = {"model": "kjv", "prompt": "And", "max_tokens": 900, "ignore_eos": True}
    with (
        pytest.raises(httpx.ReadTimeout),
        httpx.Client(headers={"authorization": f"Bearer {KEY}"}) as client,
    ):
        client.post(f"{gateway.url}/v1/completions", json=many, timeout=0.5)
    stream = ask(gateway, 0, stream=True)
    next(iter(stream))
    stream.close()
    for _ in range(100):
        if gateway.metric("arcpp_running") == 0:
            break
        time.sleep(0.1)
    assert gateway.metric("arcpp_running") == 0
    assert gateway.metric("arcpp_free_slots") == SLOTS
    assert gateway.metric('arcpp_finished_total{reason="cancelled"}') > before


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        (b"{", 400, "JSON"),
        (b"\xff\xfe", 400, ""),
        (b"[" * 50_000, 400, ""),
        ({}, 400, "prompt"),
        ({"prompt": ""}, 400, "prompt: '' is empty"),
        ({"prompt": [5, 99999]}, 400, "99999 is no token id"),
        ({"prompt": "x", "max_tokens": 0}, 400, "max_tokens"),
        ({"prompt": "x", "max_tokens": -5}, 400, "max_tokens"),
        ({"prompt": "x", "max_tokens": 10**9}, 400, "at most"),
        ({"prompt": "x", "temperature": -1}, 400, "temperature"),
        ({"prompt": "x", "top_p": 0}, 400, "top_p"),
        ({"prompt": "x", "n": 2}, 400, "n is not supported"),
        ({"prompt": "x", "logit_bias": {"999999": 1}}, 400, "is no token id from 0"),
        ({"prompt": ["a", "b"]}, 400, "one at a time"),
        ({"prompt": "x", "model": "gpt"}, 400, "model: 'gpt' is not served here: kjv is"),
        ({"prompt": "x " * 99_000}, 400, "prompt"),
        ({"prompt": "x" * 300_000}, 413, "at most 200000 bytes"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_bad_request_is_one_error_and_the_next_one_works(
    gateway: Gateway, texts: list[str], body: Any, status: int, says: str
) -> None:
    answer = gateway.post(body)
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert says in error["message"]
    assert "\n" not in error["message"]
    assert len(answer.headers["x-request-id"]) == 12
    assert ask(gateway, 2).choices[0].text == texts[2]


def test_a_body_that_hides_its_length_is_bounded(gateway: Gateway) -> None:
    def body() -> Iterator[bytes]:
        yield b'{"prompt": "'
        for _ in range(100):
            yield b"x" * 10_000

    answer = httpx.post(
        f"{gateway.url}/v1/completions", content=body(), timeout=60,
        headers={"authorization": f"Bearer {KEY}", "content-type": "application/json"},
    )  # fmt: skip
    assert answer.status_code == 413


def test_without_the_key_nothing_is_answered(gateway: Gateway) -> None:
    for headers in ({}, {"authorization": "Bearer wrong"}):
        answer = httpx.post(f"{gateway.url}/v1/completions", json={}, headers=headers)
        assert (answer.status_code, answer.json()["error"]["type"]) == (401, "authentication_error")
    assert httpx.get(f"{gateway.url}/health").status_code == 200


def test_more_than_may_wait_are_told_so(gateway: Gateway) -> None:
    def status(number: int) -> int:
        return gateway.post({"prompt": "x", "max_tokens": 60, "ignore_eos": True}).status_code

    with ThreadPoolExecutor(64) as clients:
        found = list(clients.map(status, range(64)))
    assert set(found) == {200, 429}


def test_it_listens_on_loopback_and_lets_answers_finish(gateway: Gateway, texts: list[str]) -> None:
    """The module's last: the server ends."""
    import psutil

    listening = psutil.Process(gateway.process.pid).net_connections(kind="inet")
    assert {each.laddr.ip for each in listening if each.status == psutil.CONN_LISTEN} == {
        "127.0.0.1"
    }
    stream = iter(ask(gateway, 3, stream=True))
    text = next(stream).choices[0].text
    gateway.process.send_signal(signal.SIGTERM)
    text += "".join(chunk.choices[0].text for chunk in stream)
    assert text == texts[3]
    assert gateway.process.wait(60) == 0
