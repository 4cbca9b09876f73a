"""What real vLLM engines made of their memory, several starts in a row, in one process.

    python -m tests.support.engine_starts < job.json

A job is a list of ``{"name", "model", "partition", "options"}``. The output is all that the
engines log; each start begins with a line ``MARK name`` and ends with a line ``MARK {facts}``.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import preloaded
from .generate import PARTITION

MARK = "== engine start:"


@dataclass(frozen=True)
class Start:
    """One engine to start. partition: None for the planner's. options: of vllm.LLM."""

    name: str
    model: Path
    partition: str | None
    options: dict[str, Any]


@dataclass(frozen=True)
class Started:
    """What came of it.

    log: its lines. num_blocks, block_size, max_model_len: of the engine's configuration.
    max_num_seqs: the same; running: what its scheduler lets run at once. one_more: how vLLM
    refused one token more than max_model_len in the same memory, None where it did not.
    """

    log: list[str]
    num_blocks: int
    block_size: int
    max_model_len: int
    max_num_seqs: int
    running: int
    one_more: str | None


def start_all(starts: list[Start], timeout: float = 600) -> dict[str, Started]:
    """Start each in turn, and stop it. Raises RuntimeError with the end of the log."""
    job = [
        {
            "name": start.name,
            "model": str(start.model),
            "partition": start.partition,
            "options": start.options,
        }
        for start in starts
    ]
    environment = os.environ | {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_COLOR": "0",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "ARCPP_STANDBY": "1",
    }
    done = preloaded.run(
        "tests.support.engine_starts",
        given=json.dumps(job),
        environment=environment,
        timeout=timeout,
        merged=True,
    )
    if done.returncode:
        raise RuntimeError(f"exit code {done.returncode}\n{done.stdout[-8000:]}")
    return _by_start(done.stdout.splitlines())


def _by_start(lines: list[str]) -> dict[str, Started]:
    found: dict[str, Started] = {}
    name, log = "", []
    for line in lines:
        _, marked, rest = line.partition(MARK)
        if not marked:
            log.append(line)
        elif rest.lstrip().startswith("{"):
            found[name] = Started(log=log, **json.loads(rest))
        else:
            name, log = rest.strip(), []
    return found


def _main() -> None:
    from vllm import LLM

    for start in json.load(sys.stdin):
        os.environ.pop(PARTITION, None)
        if start["partition"] is not None:
            os.environ[PARTITION] = start["partition"]
        print(f"\n{MARK} {start['name']}", flush=True)
        llm = LLM(model=start["model"], **start["options"])
        core = llm.llm_engine.engine_core.engine_core
        print(f"\n{MARK} {json.dumps(_facts(core))}", flush=True)
        core.shutdown()
        del llm, core
        gc.collect()


def _facts(core: Any) -> dict[str, Any]:
    config = core.vllm_config
    return {
        "num_blocks": config.cache_config.num_gpu_blocks,
        "block_size": config.cache_config.block_size,
        "max_model_len": config.model_config.max_model_len,
        "max_num_seqs": config.scheduler_config.max_num_seqs,
        "running": core.scheduler.max_num_running_reqs,
        "one_more": _one_more(core),
    }


def _one_more(core: Any) -> str | None:
    """How vLLM refuses one token more in the memory this engine has; see Started."""
    from vllm.v1.core.kv_cache_utils import get_kv_cache_configs

    config = core.vllm_config
    model, size = config.model_config, config.cache_config.kv_cache_memory_bytes
    longest, asked = model.max_model_len, model.original_max_model_len
    specs = core.model_executor.get_kv_cache_specs()
    try:
        model.max_model_len, model.original_max_model_len = longest + 1, longest + 1
        get_kv_cache_configs(config, specs, [size] * len(specs))
    except ValueError as error:
        return str(error)
    finally:
        model.max_model_len, model.original_max_model_len = longest, asked
    return None


if __name__ == "__main__":
    _main()
