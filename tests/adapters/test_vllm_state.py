"""Recurrent state is nobody else's: used again, preempted, aborted, cached, poisoned."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest
from tokenizers import Tokenizer

from arcpp.doctor.garble import Answer, Reference, compare, perplexity
from tests.chaos.streams import ROUNDING, reference
from tests.support.generate import Continuation, Run, departures, generate
from tests.support.plugin_packages import install
from tests.support.vllm_server import HYBRID_MODEL, VllmServer

pytestmark = pytest.mark.vllm

SLOTS, REQUESTS, DISTINCT = 4, 300, 24
BLOCK = 131_072  # bytes of the bundled model's block on a stage of four layers
# As few as hold the state of four requests: longer ones are preempted for each other's sake.
BLOCKS = {"--enable-prefix-caching": 29, "--no-enable-prefix-caching": 17}


@pytest.fixture(scope="module", params=list(BLOCKS))
def server(request: pytest.FixtureRequest) -> Iterator[VllmServer]:
    arguments = (
        "--distributed-executor-backend", "arcpp", "--pipeline-parallel-size", "2",
        "--max-model-len", "1024", "--max-num-seqs", str(SLOTS), "--max-num-batched-tokens", "256",
        "--enforce-eager", "--dtype", "bfloat16", request.param,
        "--kv-cache-memory-bytes", str(BLOCKS[request.param] * BLOCK),
    )  # fmt: skip
    with VllmServer(HYBRID_MODEL, *arguments) as server:
        yield server


# Tokens of prompts. Answers to those just below a block of 256 grow out of it: only then does
# somebody have to go, as a prompt is not begun before there is room for all of it.
LENGTHS = (8, 60, 12, 250, 20, 254, 500, 252)
# Requests of which as many begin as fit, and which need one block more soon after. With cached
# prefixes a request's state has two blocks at times, which makes room for other lengths.
GROWING = {
    "--enable-prefix-caching": (760, 762, 764, 766, 1000, 759, 763, 765),
    "--no-enable-prefix-caching": (248, 250, 252, 254, 247, 251, 253, 249),
}


def _requests(
    chance: random.Random, distinct: int, lengths: tuple[int, ...]
) -> list[tuple[list[int], int]]:
    """Prompts, and how many tokens are wanted."""
    words = ["heaven", "earth", "and the waters", "light", "the sons of", "Israel", "in the days"]
    tokenizer = Tokenizer.from_file(str(HYBRID_MODEL / "tokenizer.json"))
    return [
        (
            tokenizer.encode(" ".join(chance.choices(words, k=1000))).ids[: lengths[number % 8]],
            chance.randint(6, 12),
        )
        for number in range(distinct)
    ]


def test_300_requests_over_four_slots_get_what_they_get_alone(server: VllmServer) -> None:
    chance = random.Random(7)
    client = openai.OpenAI(base_url=server.url, api_key="none", timeout=600)
    distinct = _requests(chance, DISTINCT, LENGTHS)
    alone = [reference(client, prompt, tokens) for prompt, tokens in distinct]
    asked = [number % DISTINCT for number in range(REQUESTS)]
    chance.shuffle(asked)
    aborted = set(chance.sample(range(REQUESTS), 30))

    def ask(place: int) -> Continuation | None:
        prompt, tokens = distinct[asked[place]]
        if place not in aborted:
            return reference(client, prompt, tokens)
        stream = client.completions.create(
            model="model", prompt=prompt, max_tokens=60, stream=True,
            extra_body={"ignore_eos": True},
        )  # fmt: skip
        next(iter(stream))
        stream.close()
        return None

    with ThreadPoolExecutor(16) as clients:
        found = list(clients.map(ask, range(REQUESTS)))
    kept = [(alone[asked[place]], got) for place, got in enumerate(found) if got is not None]
    rounded, wrong = departures([a for a, _ in kept], [b for _, b in kept], ROUNDING)
    counted = _counted(server)
    print(f"{len(kept)} answers, {len(aborted)} aborts, {counted}: {rounded} left by rounding")
    assert not wrong
    cached = "--enable-prefix-caching" in server.command
    assert counted["prefix_cache_hits" if cached else "num_preemptions"] > 0


def test_growing_requests_are_preempted_for_each_others_sake(server: VllmServer) -> None:
    client = openai.OpenAI(base_url=server.url, api_key="none", timeout=600)
    lengths = next(GROWING[mode] for mode in GROWING if mode in server.command)
    asked = _requests(random.Random(11), len(lengths), lengths)
    alone = [reference(client, prompt, tokens) for prompt, tokens in asked]
    before = _counted(server)["num_preemptions"]
    with ThreadPoolExecutor(len(asked)) as clients:
        found = list(clients.map(lambda one: reference(client, *one), asked))
    preempted = _counted(server)["num_preemptions"] - before
    rounded, wrong = departures(alone, found, ROUNDING)
    print(f"{preempted:.0f} preemptions: {rounded} left by rounding")
    assert not wrong
    assert preempted > 0


def _counted(server: VllmServer) -> dict[str, float]:
    return {
        name: sum(value for value, _ in server.metrics(f"vllm:{name}_total").values())
        for name in ("num_preemptions", "prefix_cache_hits")
    }


POISON = '''
import torch
from arcpp import hookimpl

@hookimpl
def arcpp_plan_made(plan, stage):
    """Every block of state that is lent is full of somebody else's, and kernels read it.

    Lent is whatever the scheduler says is new, so that it is no business of the guard's.
    """
    if stage is None:
        return
    from arcpp_vllm.state_guard import StateGuard
    from vllm.v1.attention.backends.gdn_attn import GDNAttentionMetadataBuilder as Builder

    before, build = StateGuard.before_step, Builder.build

    def dirty(self, step):
        lent = [new.block_ids for new in step.scheduled_new_reqs]
        lent += [blocks for blocks in step.scheduled_cached_reqs.new_block_ids if blocks]
        for blocks in lent:
            for number, tables in self.groups.items():
                for block in blocks[number]:
                    for array in tables.tensors.values():
                        if block:
                            array[block].fill_(GARBAGE)
        before(self, step)

    def reading(self, *given, **more):
        made = build(self, *given, **more)
        for name in ("has_initial_state", "prefill_has_initial_state"):
            flags = getattr(made, name, None)
            if flags is not None:
                setattr(made, name, torch.ones_like(flags))
        return made

    StateGuard.before_step, Builder.build = dirty, reading
'''
GARBAGE = {"arcpp-poison": "0.37", "arcpp-poison-nan": 'float("nan")'}  # plugin -> what it leaves


def test_without_the_guard_dirty_state_makes_other_text(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The mutation check of the guard, and of the garble detector: told apart by numbers.

    As few blocks as hold the state of four of the twelve requests: some begin twice.
    """
    for plugin, garbage in GARBAGE.items():
        module = plugin.replace("-", "_")
        install(monkeypatch, tmp_path, module, POISON.replace("GARBAGE", garbage))
        monkeypatch.setenv("PYTHONPATH", str(tmp_path / plugin), prepend=os.pathsep)
    settings = {"clean": {"load_plugins": []}}
    for plugin in GARBAGE:
        # Off: what would end the server before there is any text to judge.
        unguarded = {"zero_state": False, "check_finite": False, "state_check_every": 0}
        settings[f"{plugin}, guarded"] = {"load_plugins": [plugin]}
        settings[f"{plugin}, unguarded"] = {"load_plugins": [plugin]} | unguarded
    options = {
        "distributed_executor_backend": "arcpp", "pipeline_parallel_size": 2,
    }  # fmt: skip
    runs = [
        Run(name, "4,4", options | {"additional_config": {"arcpp": one}})
        for name, one in settings.items()
    ]
    rows = json.loads((HYBRID_MODEL.parent / "reference.json").read_text())["prompts"]
    right = [Reference(row["output_ids"], row["margins"]) for row in rows]
    found = generate(
        HYBRID_MODEL, [row["prompt_ids"] for row in rows], 64, runs, dtype="bfloat16",
        max_model_len=1024, max_num_seqs=SLOTS, max_num_batched_tokens=256, enforce_eager=True,
        enable_prefix_caching=False, seed=0,
        kv_cache_memory_bytes=BLOCKS["--no-enable-prefix-caching"] * BLOCK,
    )  # fmt: skip
    answers = {
        name: [Answer(one.ids, one.logprobs) for one in several] for name, several in found.items()
    }
    expected = perplexity(answers["clean"])
    judged = {
        name: compare(right, several, rounding=ROUNDING, expected=expected)
        for name, several in answers.items()
    }
    print("", *(f"{name}: {garble}" for name, garble in judged.items()), sep="\n")
    assert {name for name, garble in judged.items() if garble.garbled} == {
        f"{plugin}, unguarded" for plugin in GARBAGE
    }
    assert len(judged["arcpp-poison, unguarded"].wrong) >= 2
