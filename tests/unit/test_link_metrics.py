"""What ends of links counted, from the page of a worker to the text a scrape gets."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support import fake_vllm

from arcpp.link import LinkCounters, Verification

pytest.importorskip("torch")
prometheus_client = pytest.importorskip("prometheus_client")
multiprocess = pytest.importorskip("prometheus_client.multiprocess")

ENTRY = "vllm.entrypoints.launchers.api_server.entry:serve"


@pytest.fixture
def vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """A fake vLLM with the adapter's modules beside it, and a registry like a process's own."""
    for name in ("ARCPP_VLLM_RUN_FOLDER", "VLLM_RPC_BASE_PATH", "VLLM_USE_V2_MODEL_RUNNER"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    registry = prometheus_client.CollectorRegistry()
    monkeypatch.setattr(prometheus_client, "REGISTRY", registry)
    collector = multiprocess.MultiProcessCollector
    monkeypatch.setattr(collector, "__init__", collector.__init__)
    monkeypatch.setitem(sys.modules, "uvicorn", SimpleNamespace(Config=type("Config", (), {})))
    with fake_vllm.installed(tmp_path / "site") as fake:
        fake.plugin.register()
        fake.counters = import_module("arcpp_vllm.link_counters")
        fake.metrics = import_module("arcpp_vllm.link_metrics")
        fake.folder = import_module("arcpp_vllm.run_folder").ensure()
        fake.registry = registry
        yield fake


def end(name: str = "stage0->stage1", **counted: Any) -> SimpleNamespace:
    return SimpleNamespace(
        name=name, kind="ring", pinning="registered", verification=Verification.DEVICE,
        counters=LinkCounters(**counted),
    )  # fmt: skip


def scraped(registry: Any) -> list[str]:
    text = prometheus_client.generate_latest(registry).decode()
    return [line for line in text.splitlines() if line.startswith("arcpp_link_")]


def test_counts_arrive_with_their_labels(vllm: SimpleNamespace) -> None:
    sender = end(hops=1)
    published = vllm.counters.publish(sender, sends=True, model_name="27B")
    vllm.metrics.show_links(vllm.folder)
    registry = vllm.registry
    sender.counters.hops, sender.counters.bytes = 3, 2**40
    sender.counters.wait_seconds, sender.counters.verify_failures = 0.25, 1
    published.update()
    labels = '{end="send",kind="ring",link="stage0->stage1",model_name="27B"'
    assert scraped(registry) == [
        f"arcpp_link_hops_total{labels}}} 3.0",
        f"arcpp_link_bytes_total{labels}}} 1.099511627776e+12",
        f"arcpp_link_wait_seconds_total{labels}}} 0.25",
        f"arcpp_link_verify_failures_total{labels}}} 1.0",
        f'arcpp_link_info{labels},pinning="registered",verification="device"}} 1.0',
    ]
    published.close()
    published.close()
    published.update()
    assert scraped(registry) == []
    assert not list(vllm.folder.glob("link-*"))


def test_only_this_user_may_read(vllm: SimpleNamespace) -> None:
    published = vllm.counters.publish(end(), sends=False, model_name="m")
    (file,) = vllm.folder.glob("link-*")
    assert file.stat().st_mode & 0o777 == 0o600
    assert os.fstat(published._descriptor).st_mode & 0o777 == 0o600
    published.close()


def test_an_end_that_counts_nothing_is_not_there(vllm: SimpleNamespace) -> None:
    assert vllm.counters.publish(None, sends=True, model_name="m") is None
    other = SimpleNamespace(name="theirs", kind="theirs")
    assert vllm.counters.publish(other, sends=True, model_name="m") is None


def test_a_worker_that_died_is_left_out(vllm: SimpleNamespace) -> None:
    code = (
        "import sys, types, pathlib, os\n"
        "sys.modules['vllm'] = types.ModuleType('vllm')\n"
        "sys.modules['vllm.logger'] = logger = types.ModuleType('vllm.logger')\n"
        "logger.init_logger = lambda name: None\n"
        "from arcpp_vllm.link_counters import EndOfLink, Published\n"
        "from arcpp.link import LinkCounters\n"
        "end = EndOfLink('stage0->stage1', 'send', 'ring', '', '', 'm')\n"
        f"Published(pathlib.Path({str(vllm.folder)!r}), end, LinkCounters(7)).update()\n"
        "print('there', flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline()
        ((described, counted),) = vllm.counters.read_all(vllm.folder)
        assert (described.end, counted.hops) == ("send", 7)
        worker.kill()
    assert list(vllm.folder.glob("link-*"))  # the run folder goes with the server
    assert list(vllm.counters.read_all(vllm.folder)) == []


def test_a_number_that_belongs_to_another_is_not_believed(vllm: SimpleNamespace) -> None:
    published = vllm.counters.publish(end(), sends=True, model_name="m")
    (file,) = vllm.folder.glob("link-*")
    file.write_text(file.read_text().replace(published._token, "0" * 32))
    assert list(vllm.counters.read_all(vllm.folder)) == []
    file.write_text("{")
    assert list(vllm.counters.read_all(vllm.folder)) == []


def test_an_engine_that_closes_late_leaves_its_successor(vllm: SimpleNamespace) -> None:
    before = vllm.counters.publish(end(hops=1), sends=True, model_name="m")
    after = vllm.counters.publish(end(hops=2), sends=True, model_name="m")
    after.update()
    before.close()
    assert [counted.hops for _, counted in vllm.counters.read_all(vllm.folder)] == [2]
    after.close()


def test_a_full_disk_costs_the_metrics_and_not_the_start(
    vllm: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(file: Path, text: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(vllm.counters, "_write", full)
    before = len(os.listdir("/proc/self/fd"))
    assert vllm.counters.publish(end(), sends=True, model_name="m") is None
    assert len(os.listdir("/proc/self/fd")) == before
    assert "no metrics of this end" in caplog.text


def test_each_registry_gets_one_collector(vllm: SimpleNamespace, tmp_path: Path) -> None:
    for _ in range(3):
        vllm.metrics.show_links(vllm.folder)
    assert len(vllm.registry._collector_to_names) == 2  # of links, and of recoveries
    assert {"arcpp_link_hops_total", "arcpp_link_info"} <= set(vllm.registry._names_to_collectors)
    published = vllm.counters.publish(end(), sends=True, model_name="m")
    for _ in range(2):  # as with several API servers: a new one at each scrape
        registry = prometheus_client.CollectorRegistry()
        multiprocess.MultiProcessCollector(registry, str(tmp_path))
        multiprocess.MultiProcessCollector(None, str(tmp_path))
        assert scraped(registry) == scraped(vllm.registry) != []
    published.close()


@pytest.mark.parametrize("serves", [True, False])
def test_only_api_servers_that_asked_for_arcpp(vllm: SimpleNamespace, serves: bool) -> None:
    if serves:
        fake_vllm.put(ENTRY, None)
    vllm.EngineArgs("mp").create_engine_config()
    assert not vllm.registry._collector_to_names
    vllm.EngineArgs("arcpp").create_engine_config()
    assert bool(vllm.registry._collector_to_names) is serves
