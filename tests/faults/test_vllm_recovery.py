"""A stage is lost while clients stream: they see a pause, and then the tokens they would have got.

Real servers, real clients, real kills. A short seeded slice of ``make chaos``, and what chance
would not show every time.
"""

from __future__ import annotations

import json
import signal
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from tests.chaos import report
from tests.chaos.run import chaos_in
from tests.chaos.server import ChaosServer
from tests.chaos.streams import ROUNDING, Stream, prompts, reference, run, worst_token
from tests.support import lora
from tests.support.generate import Continuation, departures

pytestmark = pytest.mark.vllm

POISON = 255  # a token no other prompt here holds


@pytest.fixture(scope="module")
def server() -> Iterator[ChaosServer]:
    """Two stages, prefix caching as vLLM has it by default."""
    with ChaosServer() as server:
        yield server


def client_of(server: ChaosServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.server.url, api_key="none", timeout=300, max_retries=0)


def kill(server: ChaosServer, stage: int) -> None:
    process = server.stage(stage)
    assert process is not None
    process.kill()


def recovering(server: ChaosServer) -> int:
    """How many recoveries were completed so far."""
    return len(server.events("recovered"))


def same(expected: list[Continuation], streams: list[Stream]) -> None:
    assert [stream.error for stream in streams] == [None] * len(streams)
    found = [Continuation(stream.ids, []) for stream in streams]
    rounded, wrong = departures(expected, found, ROUNDING)
    print(f"{rounded} of {len(streams)} streams left the reference by rounding")
    assert not wrong


def test_a_slice_of_chaos(server: ChaosServer) -> None:
    kinds = ("killed", "not a number", "device lost", "exit in sample", "killed, and again")
    result = chaos_in(server, 5, 5, only=kinds)
    print("\n".join(report.table([result])))
    assert report.complaints(result) == []
    said = {fault["kind"]: fault["said"] for fault in result["faults"]}
    assert said["not a number"] == "NonFinite"
    assert said["device lost"] == "DeviceLost"


def test_killed_while_idle_it_is_back_before_anybody_asks(server: ChaosServer) -> None:
    done = recovering(server)
    kill(server, 0)
    server.await_recoveries(done + 1, 120)
    stream = run(client_of(server), prompts(1)[0], 20)
    assert stream.error is None


def test_health_says_so_and_new_requests_wait(server: ChaosServer) -> None:
    done = recovering(server)
    kill(server, 1)
    said: dict[str, Any] = {}
    deadline = time.monotonic() + 30
    while not said and time.monotonic() < deadline:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{server.server.port}/health", timeout=10)
        except urllib.error.HTTPError as error:
            said = {"code": error.code, "after": error.headers["Retry-After"]} | json.load(error)
    assert said["code"] == 503
    assert int(said["after"]) >= 1
    assert "recovering: StageDied" in said["error"]["message"]
    stream = run(client_of(server), prompts(1)[0], 20)  # asked meanwhile: it waits
    assert stream.error is None
    server.await_recoveries(done + 1, 120)


def test_killed_during_the_prefill_of_a_long_prompt(server: ChaosServer) -> None:
    client, prompt = client_of(server), "And the people said unto him, " * 80
    done, streams = recovering(server), []
    asking = threading.Thread(target=lambda: streams.append(run(client, prompt, 16)))
    asking.start()
    time.sleep(0.15)
    kill(server, 0)
    asking.join(200)
    server.await_recoveries(done + 1, 120)
    same([reference(client, prompt, 16)], streams)  # afterwards: before, it would have been cached


def test_an_abort_during_recovery_is_an_abort(server: ChaosServer) -> None:
    client, done = client_of(server), recovering(server)
    prompt = prompts(2)[1]
    expected = reference(client, prompt, 200)
    abandoned = client.completions.create(
        model="model", prompt=prompts(1)[0], max_tokens=800, stream=True,
        extra_body={"ignore_eos": True},
    )  # fmt: skip
    next(iter(abandoned))
    with ThreadPoolExecutor(1) as other:
        kept = other.submit(run, client, prompt, 200)
        time.sleep(0.5)
        kill(server, 1)
        time.sleep(0.3)
        abandoned.close()
        same([expected], [kept.result(200)])
    server.await_recoveries(done + 1, 120)
    deadline = time.monotonic() + 30
    while server.server.metrics("vllm:num_requests_running"):
        values = server.server.metrics("vllm:num_requests_running").values()
        if all(value == 0 for value, _ in values):
            break
        assert time.monotonic() < deadline, "the aborted request still runs"
        time.sleep(0.2)


def test_what_clients_may_ask_for_goes_on(server: ChaosServer) -> None:
    """Seeds, n, logprobs, stop strings, min_tokens and structured output, across a kill."""
    client = client_of(server)
    asked: dict[str, dict[str, Any]] = {
        "seed": {"temperature": 0.9, "seed": 7, "logprobs": 2},
        "n": {"n": 2, "temperature": 0.8, "seed": 3},
        "stop": {"stop": ["zzzz"], "temperature": 0},
        "min_tokens": {"temperature": 0, "extra_body": {"min_tokens": 150}},
        "regex": {
            "temperature": 0,
            "extra_body": {"structured_outputs": {"regex": "[a-y ]{120,140}"}},
        },
    }

    def ask(how: dict[str, Any]) -> Any:
        body = {"model": "model", "prompt": "And God said unto Noah", "max_tokens": 180}
        return client.completions.create(**(body | how))

    before = {name: ask(how) for name, how in asked.items()}
    done = recovering(server)
    with ThreadPoolExecutor(len(asked)) as clients:
        futures = {name: clients.submit(ask, how) for name, how in asked.items()}
        time.sleep(0.8)
        kill(server, 0)
        after = {name: future.result(250) for name, future in futures.items()}
    server.await_recoveries(done + 1, 120)
    for name in asked:
        quiet = [len(choice.text) > 0 for choice in before[name].choices]
        assert [len(choice.text) > 0 for choice in after[name].choices] == quiet, name
        print(name, [a.text == b.text for a, b in
                     zip(before[name].choices, after[name].choices, strict=True)])  # fmt: skip
        assert after[name].usage.completion_tokens > 20, name
    text = after["regex"].choices[0].text
    assert 120 <= len(text) <= 140
    assert set(text) <= set("abcdefghijklmnopqrstuvwxy ")
    for one, two in zip(before["seed"].choices, after["seed"].choices, strict=True):
        assert one.text[:30] == two.text[:30]


def test_metrics_tell_of_it(server: ChaosServer) -> None:
    found = server.server.metrics("arcpp_")
    names = {name for name, _ in found}
    assert {"arcpp_faults_total", "arcpp_recoveries_total", "arcpp_recovering"} <= names
    recoveries = found["arcpp_recoveries_total", ""][0]
    assert recoveries == recovering(server)


@pytest.fixture(scope="module")
def poisoned() -> Iterator[ChaosServer]:
    """Three stages, no prefix caching, and a prompt that kills the stage it reaches."""
    arguments = ("--no-enable-prefix-caching",)
    settings = {"restart_budget": 5, "restart_window": 600}
    env = {"CHAOS_POISON": str(POISON)}
    with ChaosServer(*arguments, stages=3, settings=settings, env=env) as server:
        yield server


def test_a_prompt_that_kills_its_stage_fails_alone(poisoned: ChaosServer) -> None:
    client = client_of(poisoned)
    asked = prompts(11)
    expected = [reference(client, prompt, 60) for prompt in asked]
    with ThreadPoolExecutor(12) as clients:
        others = [clients.submit(run, client, prompt, 60) for prompt in asked]
        time.sleep(0.2)
        with pytest.raises(openai.InternalServerError) as failed:
            client.completions.create(model="model", prompt=[POISON, 4, 5, 6], max_tokens=60)
        same(expected, [other.result(300) for other in others])
    assert "lost its stage twice running alone" in str(failed.value)
    for stream in (run(client, prompt, 20) for prompt in asked[:2]):
        assert stream.error is None
        assert worst_token(client, stream) < 2 * ROUNDING


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChaosServer]:
    """With a LoRA adapter, and a budget of one restart."""
    adapter = lora.write(tmp_path_factory.mktemp("adapter"))
    arguments = ("--enable-lora", "--max-lora-rank", "8", "--lora-modules", f"psalm={adapter}")
    with ChaosServer(*arguments, settings={"restart_budget": 1}) as server:
        yield server


def test_an_adapter_is_there_again_after_a_restart(adapted: ChaosServer) -> None:
    client = client_of(adapted)

    def asked(model: str) -> Continuation:
        return reference(client, "And it came to pass", 40, model=model)

    before = {model: asked(model) for model in ("model", "psalm")}
    assert before["model"].ids != before["psalm"].ids
    kill(adapted, 0)
    adapted.await_recoveries(1, 120)
    for model, alone in before.items():
        _, wrong = departures([alone], [asked(model)], ROUNDING)
        assert not wrong, model


def test_a_spent_budget_ends_the_server_with_its_history(adapted: ChaosServer) -> None:
    """The test before took the one restart."""
    assert recovering(adapted) == 1
    running = threading.Thread(
        target=run, args=(client_of(adapted), prompts(1)[0], 900), daemon=True
    )
    running.start()
    time.sleep(1)
    kill(adapted, 1)
    code = adapted.server.process.wait(120)
    adapted.server.note_leftovers(patience=40)
    assert code not in (0, None)
    text = adapted.server.text()
    last = text[text.rindex("arcpp: error: the engine ended") :]
    assert last.count("StageDied (stage ") == 2, last
    assert not adapted.server.left, adapted.server.left


def test_killed_during_shutdown_nothing_stays() -> None:
    with ChaosServer() as server:
        assert run(client_of(server), prompts(1)[0], 5).error is None
        server.server.process.send_signal(signal.SIGTERM)
        time.sleep(0.1)
        process = server.stage(0)
        if process is not None:
            process.kill()
        server.server.process.wait(90)
        server.server.note_leftovers(patience=40)
        left = server.server.left
        assert not server.events("recovered")
    assert not left, left
