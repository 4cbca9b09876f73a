"""Resident memory of two CPU stages while one request grows to the longest context.

The bundled model in bfloat16 in real vLLM, a pool that holds one request of 32,768 tokens. First
one prompt as long as that, so that every buffer and block was used once; then a short prompt with
an answer that ends at the longest context. Memory of caches does not grow with the context; what
is left is about 0.1 KiB a token, in both stages alike, and it was not traced to its owner.
"""

from __future__ import annotations

import openai
import psutil

from tests.support import leftovers
from tests.support.vllm_server import HYBRID_MODEL, VllmServer

_LONGEST, _PROMPT = 32_768, 16
_SHOWN = (256, 1024, 2048, 4096, 8192, 12_288, 16_384, 20_480, 24_576, 28_672, _LONGEST - 1)
_BLOCK, _BLOCKS = 131_072, 150  # bytes on a stage of four layers; 128 for tokens, 6 for state


def table() -> list[str]:
    """The section's table."""
    options = (
        "--distributed-executor-backend", "arcpp", "--pipeline-parallel-size", "2",
        "--max-model-len", str(_LONGEST), "--max-num-seqs", "2",
        "--max-num-batched-tokens", "1024", "--enforce-eager", "--dtype", "bfloat16",
        "--kv-cache-memory-bytes", str(_BLOCKS * _BLOCK),
    )  # fmt: skip
    with VllmServer(HYBRID_MODEL, *options) as server:
        stages = [_stage(server, number) for number in range(2)]
        rows = {"started": _resident(stages)}
        client = openai.OpenAI(base_url=server.url, api_key="none", timeout=1800)
        _complete(client, _LONGEST - 1, 1, salt=5)
        rows["after a prompt of 32,767"] = _resident(stages)
        grown = _grow(client, stages)
    first, last = min(grown), max(grown)
    rows |= {f"{tokens:,}": kept for tokens, kept in grown.items()}
    lines = ["| tokens of context | stage 0, MiB | stage 1, MiB |", "| --- | ---: | ---: |"]
    lines += [f"| {name} | {a / 2**20:.1f} | {b / 2**20:.1f} |" for name, (a, b) in rows.items()]
    more = [(b - a) / 2**20 for a, b in zip(grown[first], grown[last], strict=True)]
    lines += ["", f"From {first:,} to {last:,} tokens: {more[0]:+.1f} MiB and {more[1]:+.1f} MiB."]
    return [*lines, f"The pool is {_BLOCKS * _BLOCK / 2**20:.1f} MiB on each stage."]


def _grow(client: openai.OpenAI, stages: list[psutil.Process]) -> dict[int, tuple[int, ...]]:
    """Resident bytes of the stages by tokens of context, while one answer comes."""
    stream = client.completions.create(
        model="model", prompt=_prompt(_PROMPT, salt=11), max_tokens=_LONGEST - _PROMPT,
        temperature=0, stream=True,
        stream_options={"include_usage": True, "continuous_usage_stats": True},
        extra_body={"ignore_eos": True},
    )  # fmt: skip
    found: dict[int, tuple[int, ...]] = {}
    waiting = list(_SHOWN)
    for reply in stream:
        context = reply.usage.total_tokens if reply.usage else 0
        if waiting and context >= waiting[0]:
            found[context] = _resident(stages)
            waiting = [shown for shown in waiting if shown > context]
    return found


def _complete(client: openai.OpenAI, length: int, tokens: int, salt: int) -> None:
    client.completions.create(
        model="model", prompt=_prompt(length, salt), max_tokens=tokens, temperature=0
    )


def _prompt(length: int, salt: int) -> list[int]:
    return [(7 * place + salt * (place // 97)) % 4000 + 64 for place in range(length)]


def _resident(stages: list[psutil.Process]) -> tuple[int, ...]:
    return tuple(stage.memory_info().rss for stage in stages)


def _stage(server: VllmServer, number: int) -> psutil.Process:
    for process in leftovers.processes_of(server.session):
        if "".join(process.cmdline()[:1]).endswith(f"Worker_PP{number}"):
            return process
    raise RuntimeError(f"there is no stage {number}")
