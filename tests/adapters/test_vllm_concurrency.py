"""A server asked for far more requests at once than it has recurrent state for.

It runs as many as the state blocks hold, and all the others after them, with the right tokens.
"""

from __future__ import annotations

import os
import re
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest

from tests.support.generate import Continuation, departures
from tests.support.plugin_packages import write
from tests.support.vllm_server import HYBRID_MODEL, VllmServer

from .conftest import SMALL

pytestmark = pytest.mark.vllm

ROUNDING = 0.1  # of bfloat16 logits, which depends on the batch; see test_vllm_tokens
TOKENS, CLIENTS = 32, 20
ASKED = (*SMALL, "--max-num-seqs", "64", "--kv-cache-memory-bytes", str(3 << 20))
BOUND = 3  # what that memory has blocks for


@pytest.fixture(scope="module")
def server() -> Iterator[VllmServer]:
    with VllmServer(HYBRID_MODEL, *ASKED) as server:
        yield server


def ask(server: VllmServer, number: int) -> Continuation:
    client = openai.OpenAI(base_url=server.url, api_key="none", timeout=300)
    reply = client.completions.create(
        model="model",
        prompt=f"In the beginning of book {number} God created " + "heaven and earth, " * number,
        max_tokens=TOKENS,
        temperature=0,
        logprobs=2,
        extra_body={"ignore_eos": True, "return_tokens_as_token_ids": True},
    )
    choice = reply.choices[0]
    assert choice.finish_reason == "length"
    assert choice.logprobs is not None
    ids = [int(token.removeprefix("token_id:")) for token in choice.logprobs.tokens or ()]
    margins = []
    for top in choice.logprobs.top_logprobs or ():
        best, second = sorted(top.values(), reverse=True)[:2]
        margins.append(best - second)
    return Continuation(ids, margins)


def test_it_says_once_how_many_and_why(server: VllmServer) -> None:
    lines = [line for line in server.text().splitlines() if "arcpp: max_num_seqs" in line]
    assert len(lines) == 1
    assert re.search(r"EngineCore.*max_num_seqs 64 -> 3: of 24 blocks one is never used", lines[0])
    assert "at most 3 requests at once" in server.text(), "the plan said so before"


def running(server: VllmServer) -> int:
    """Requests the scheduler runs now."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=30) as reply:
        found = re.search(r"^vllm:num_requests_running\S* (\d+)", reply.read().decode(), re.M)
    assert found is not None
    return int(found[1])


def ask_all(server: VllmServer) -> tuple[list[Continuation], int]:
    """All requests at once: their answers, and the most that were seen running."""
    with ThreadPoolExecutor(CLIENTS) as clients:
        asked = [clients.submit(ask, server, number) for number in range(CLIENTS)]
        seen = set()
        while not all(future.done() for future in asked):
            seen.add(running(server))
            time.sleep(0.02)
        return [future.result() for future in asked], max(seen)


def test_all_finish_with_the_tokens_they_get_alone(server: VllmServer) -> None:
    alone = [ask(server, number) for number in range(CLIENTS)]
    together, most = ask_all(server)
    assert most == BOUND
    assert all(len(one.ids) == TOKENS for one in together)
    rounded, wrong = departures(alone, together, ROUNDING)
    assert not wrong
    assert rounded <= CLIENTS // 3


UNBOUND = """
def register():
    from arcpp_vllm import concurrency
    concurrency.bound = lambda vllm_config, kv_cache_configs: None
"""


def test_without_the_bound_more_run_than_there_is_state_for(tmp_path: Path) -> None:
    """The mutation check: what the test above asserts of the server does not hold by itself."""
    package = write(
        tmp_path, "arcpp_unbound", UNBOUND, group="vllm.general_plugins", function="register"
    )
    path = [str(tmp_path / package), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {"PYTHONPATH": os.pathsep.join(path)}
    with VllmServer(HYBRID_MODEL, *ASKED, env=env) as server:
        together, most = ask_all(server)
        preempted = server.metrics("vllm:num_preemptions_total").values()
        said = "arcpp: max_num_seqs" in server.text()
    print(f"{most} at once instead of {BOUND}, {sum(n for n, _ in preempted):.0f} preempted")
    assert most > BOUND
    assert not said
    assert all(len(one.ids) == TOKENS for one in together)
