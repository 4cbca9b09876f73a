"""What stages tell each other, between two real processes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support import fake_vllm
from tests.support.link_peers import Pair, nothing

pytest.importorskip("torch")


def test_everybody_learns_every_fact_in_stage_order(tmp_path: Path) -> None:
    facts: list[list[Any]] = [
        [{"device": "xpu:0", "free": 2**63, "sizes": [1, None]}, {"device": "\N{SNOWMAN}"}],
        [None, "x" * 100_000],
        [[], 0.1],
        ["", False],
    ]
    with Pair(tmp_path, nothing) as pair:
        for peer in (pair.sender, pair.receiver):
            peer.run(_install)
        for both in facts:
            pair.sender.start(_gather, both[0])
            assert pair.receiver.run(_gather, both[1]) == both
            assert pair.sender.result() == both


def _install(_end: None) -> None:
    import torch.distributed as dist

    world = SimpleNamespace(cpu_group=dist.group.WORLD)
    fake_vllm.put("vllm.distributed.parallel_state:get_world_group", lambda: world)


def _gather(_end: None, fact: Any) -> list[Any]:
    from arcpp_vllm.exchange import gather

    return gather(fact)
