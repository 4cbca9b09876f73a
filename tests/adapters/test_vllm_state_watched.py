"""Recurrent state watched in a server: `arcpp doctor --garble`, canaries, and the bound on requests
after stages started again."""

from __future__ import annotations

import json
import os
import re
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
from click.testing import CliRunner

from arcpp.cli.main import commands
from tests.chaos.streams import ROUNDING, reference
from tests.support.generate import departures
from tests.support.plugin_packages import write
from tests.support.vllm_server import HYBRID_MODEL, VllmServer

from .conftest import SMALL

pytestmark = pytest.mark.vllm

CLIENTS, TOKENS = 12, 48
BOUND = 3  # requests that 24 blocks of 128 KiB hold state for; see test_vllm_concurrency

MEDDLER = '''
import os
from pathlib import Path
import torch
from arcpp import hookimpl

FOLDER = Path(os.environ["MEDDLER_FOLDER"])

@hookimpl
def arcpp_plan_made(plan, stage):
    """On request: write past a state, once; or lend dirty state that kernels read."""
    if stage is None:
        return
    from arcpp_vllm.state_guard import StateGuard
    from vllm.v1.attention.backends.gdn_attn import GDNAttentionMetadataBuilder as Builder

    before, after, build = StateGuard.before_step, StateGuard.after_step, Builder.build

    def dirty(self, step):
        before(self, step)
        if (FOLDER / "dirty").exists():
            for new in step.scheduled_new_reqs:
                for number, tables in self.groups.items():
                    for block in filter(None, new.block_ids[number]):
                        for array in tables.tensors.values():
                            array[block].fill_(0.37)

    def past(self, step, finite):
        armed = self._canary._armed
        if stage == 1 and armed and (FOLDER / "past").exists():
            (FOLDER / "past").unlink()
            (_, group), block = list(armed.items())[-1]  # of the request that is under way
            next(iter(self._canary.watched[group].values()))[block, 0] = 0
        after(self, step, finite)

    def reading(self, *given, **more):
        made = build(self, *given, **more)
        for name in ("has_initial_state", "prefill_has_initial_state"):
            flags = getattr(made, name, None)
            if flags is not None and (FOLDER / "dirty").exists():
                setattr(made, name, torch.ones_like(flags))
        return made

    StateGuard.before_step, StateGuard.after_step, Builder.build = dirty, past, reading
'''


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("meddler")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[VllmServer]:
    site = folder / write(folder, "arcpp_meddler", MEDDLER)
    path = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))
    settings = {"state_canary": True, "state_check_every": 1, "standby": True, "step_timeout": 60}
    asked = [*SMALL, "--max-num-seqs", "64", "--kv-cache-memory-bytes", str(3 << 20)]
    asked += ["--additional-config", json.dumps({"arcpp": settings})]
    env = {"PYTHONPATH": path, "MEDDLER_FOLDER": str(folder)}
    with VllmServer(HYBRID_MODEL, *asked, env=env) as server:
        yield server


def doctor(server: VllmServer) -> dict[str, Any]:
    """What `arcpp doctor` says of the server's text."""
    sheet = HYBRID_MODEL.parent / "reference.json"
    arguments = ["doctor", "--json", "--garble", f"127.0.0.1:{server.port}", "--reference", sheet]
    found = CliRunner().invoke(commands, [str(one) for one in arguments], standalone_mode=False)
    if found.exception is not None:
        raise found.exception
    said: dict[str, Any] = json.loads(found.output)
    print({name: value for name, value in said.items() if name != "wrong"}, len(said["wrong"]))
    assert found.return_value == int(said["garbled"])
    return said


def together(server: VllmServer) -> int:
    """Clients at once, each with the tokens it gets alone; the most requests seen running."""
    client = openai.OpenAI(base_url=server.url, api_key="none", timeout=600)
    prompts = [f"And in year {n} " + "heaven and earth, " * (6 * n) for n in range(CLIENTS)]
    alone = [reference(client, prompt, TOKENS) for prompt in prompts]
    with ThreadPoolExecutor(CLIENTS) as clients:
        asked = [clients.submit(reference, client, prompt, TOKENS) for prompt in prompts]
        seen = set()
        while not all(future.done() for future in asked):
            seen.add(_running(server))
            time.sleep(0.02)
        found = [future.result() for future in asked]
    rounded, wrong = departures(alone, found, ROUNDING)
    print(f"{CLIENTS} answers, {rounded} left by rounding")
    assert not wrong
    return max(seen)


def _running(server: VllmServer) -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=60) as reply:
        found = re.search(r"^vllm:num_requests_running\S* (\d+)", reply.read().decode(), re.M)
    assert found is not None
    return int(found[1])


def test_there_is_room_for_canaries_behind_every_state(server: VllmServer) -> None:
    lines = re.findall(r"canaries behind the states of (\d+) of (\d+) rec", server.text())
    assert lines == [("3", "3"), ("3", "3")]


def test_a_healthy_server_is_not_garbled_and_disturbs_no_canary(server: VllmServer) -> None:
    said = doctor(server)
    assert not said["garbled"]
    assert said["perplexity"] == pytest.approx(said["expected"], rel=0.01)
    assert together(server) == BOUND
    assert "StateCorrupt" not in server.text()


def test_whoever_writes_past_a_state_is_a_fault_and_streams_go_on(
    server: VllmServer, folder: Path
) -> None:
    """The stages that start again run no more at once than the first did, with the same text."""
    client = openai.OpenAI(base_url=server.url, api_key="none", timeout=600)
    alone = reference(client, "And it came to pass", TOKENS)
    (folder / "past").touch()
    found = reference(client, "And it came to pass", TOKENS)
    assert not (folder / "past").exists()
    _, wrong = departures([alone], [found], ROUNDING)
    assert not wrong
    assert re.search(r"stage 1 ends: StateCorrupt.*is written past", server.text())
    assert together(server) == BOUND
    assert server.text().count("stage 1 ends") == 1


def test_dirty_state_shows_as_numbers(server: VllmServer, folder: Path) -> None:
    """Last: what it leaves in the prefix cache is wrong too."""
    (folder / "dirty").touch()
    said = doctor(server)
    assert said["garbled"]
    assert len(said["wrong"]) >= 6
    assert said["perplexity"] > 1.05 * said["expected"]
