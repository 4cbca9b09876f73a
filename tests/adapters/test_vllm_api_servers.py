"""Two API servers in front of one engine: each shows the link's metrics, and all of them go."""

from __future__ import annotations

import time

import openai
import pytest

from tests.adapters.conftest import SMALL
from tests.support.vllm_server import HYBRID_MODEL, VllmServer

pytestmark = pytest.mark.vllm


def test_both_show_the_same_and_leave_nothing() -> None:
    with VllmServer(HYBRID_MODEL, *SMALL, "--api-server-count", "2") as server:
        client = openai.OpenAI(base_url=server.url, api_key="none", timeout=300)
        for _ in range(4):
            client.completions.create(model="model", prompt=[70, 71, 72], max_tokens=8)
        time.sleep(1)
        # The kernel spreads connections over the servers, and each scrape is a new one.
        scrapes = [server.metrics("arcpp_link") for _ in range(12)]
        assert len(scrapes[0]) == 2 * 5
        assert scrapes[0]["arcpp_link_hops_total", "receive"][0] >= 4 * 7
        assert all(scrape == scrapes[0] for scrape in scrapes)
        assert server.stop() == 0
        assert not server.left, server.left
