"""What a stage may take of its own device: unequal cards, cards with less free than asked."""

from __future__ import annotations

import json
import math
import os
import sys
from dataclasses import dataclass, replace
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from arcpp.cli.plan import plan_command
from arcpp.devices import Device, DeviceMemory
from arcpp.errors import BadInput, HostMismatch
from arcpp.hooks import Hooks
from arcpp.planner import Plan, PlanRequest, make_plan
from arcpp.plugins import load_plugins
from arcpp.profile import load_profile
from arcpp.settings import Settings
from arcpp.units import GiB, MiB
from tests.support.vllm_server import HYBRID_MODEL

pytest.importorskip("vllm")

from arcpp_vllm import budget, measure, stage_plan
from arcpp_vllm.scope import PARTITION_VARIABLE

BIG = Device("xpu:0", DeviceMemory(32 * GiB, 31 * GiB))
SMALL = Device("xpu:1", DeviceMemory(12 * GiB, 9 * GiB, reserve=GiB))  # a monitor, a program
REQUEST = PlanRequest(version="0.32.0", gpu_memory_utilization=0.92, platform="xpu")


@pytest.fixture(autouse=True)
def _on_xpu(monkeypatch: pytest.MonkeyPatch) -> None:
    on(monkeypatch, cpu=False)


def on(monkeypatch: pytest.MonkeyPatch, *, cpu: bool) -> None:
    for module in (budget, measure):
        monkeypatch.setattr(module, "current_platform", SimpleNamespace(is_cpu=lambda: cpu))


def planned(request: PlanRequest = REQUEST, small: Device = SMALL) -> Plan:
    return make_plan(load_profile(HYBRID_MODEL), [BIG, small], request)


def worker_of(rank: int, device: Device, fraction: float = 0.92) -> Any:
    """A worker after init_device, as vLLM leaves it."""
    requested = math.ceil(device.memory.total * fraction)
    return SimpleNamespace(rank=rank, requested_memory=min(requested, device.memory.free))


def test_each_stage_takes_what_the_plan_says_of_its_own_device() -> None:
    plan = planned()
    for rank, device in enumerate((BIG, SMALL)):
        worker = worker_of(rank, device)
        budget.apply(worker, Settings(), REQUEST, device, plan)
        assert worker.requested_memory == REQUEST.budget(device)
        stage = plan.stages[rank]
        cache = worker.requested_memory - stage.weights_bytes - stage.workspace_bytes
        assert cache == stage.kv_available_bytes
    assert REQUEST.budget(BIG) == math.ceil(0.92 * 32 * GiB)
    assert REQUEST.budget(SMALL) == 9 * GiB - GiB - 256 * MiB


def test_a_worker_asks_for_the_profile_of_what_it_runs() -> None:
    """Not of the dtype in the config: float32 takes twice the room, and was counted as bfloat16."""
    profiles: list[Any] = []

    class Asked(Hooks):
        def model_profile(self, path: Any, **given: Any) -> Any:
            assert given == {"dtype": "float32", "host": "vllm"}
            profiles.append(super().model_profile(path, **given))
            return profiles[-1]

    hooks = Asked(load_plugins(()), Settings())
    worker = SimpleNamespace(rank=0, model_config=SimpleNamespace(model=str(HYBRID_MODEL)))
    request = replace(REQUEST, dtype="float32")
    plan = stage_plan._planned(worker, hooks, [BIG, SMALL], request)
    assert plan is not None
    assert profiles[0].weights_bytes == 2 * load_profile(HYBRID_MODEL).weights_bytes
    weights = sum(stage.weights_bytes for stage in plan.stages)
    assert weights == profiles[0].weights_bytes


def test_the_line_has_the_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    said: dict[str, list[str]] = {"info": [], "warning": []}
    for level, lines in said.items():
        add = lines.append
        monkeypatch.setattr(budget.logger, level, lambda text, *args, add=add: add(text % args))
    for rank, device in enumerate((BIG, SMALL)):
        budget.apply(worker_of(rank, device), Settings(), REQUEST, device, planned())
    assert said == {
        "info": [
            "arcpp: stage 0 may take 29.44 GiB of xpu:0 (31.00 of 32.00 free, margin 0.25, "
            "reserve 0.00); --gpu-memory-utilization 0.92 alone would be 29.44"
        ],
        "warning": [
            "arcpp: stage 1 may take 7.75 GiB of xpu:1 (9.00 of 12.00 free, margin 0.25, "
            "reserve 1.00); --gpu-memory-utilization 0.92 alone would be 11.04"
        ],
    }


@pytest.mark.parametrize("fraction", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("margin", [None, 0, 3 * GiB])
@pytest.mark.parametrize("reserves", [{}, {"xpu:0": 7 * GiB}, {"xpu:1": 2 * GiB}])
def test_never_more_than_asked_or_free(
    fraction: float, margin: int | None, reserves: dict[str, int]
) -> None:
    request = replace(REQUEST, gpu_memory_utilization=fraction, margin=margin, reserves=reserves)
    plan = planned(request)
    for rank, device in enumerate((BIG, SMALL)):
        worker = worker_of(rank, device, fraction)
        budget.apply(worker, Settings(margin=margin, reserve=reserves), request, device, plan)
        kept = device.memory.reserve + reserves.get(device.name, 0) + request.margin_of(device)
        assert worker.requested_memory <= math.ceil(fraction * device.memory.total)
        assert worker.requested_memory <= device.memory.free - kept
        assert worker.requested_memory == request.budget(device)


def test_without_a_plan_the_device_still_bounds_the_stage() -> None:
    worker = worker_of(1, SMALL)
    budget.apply(worker, Settings(), REQUEST, SMALL, None)
    assert worker.requested_memory == 9 * GiB - GiB - 256 * MiB


def test_a_device_that_keeps_everything_for_others_is_refused_in_one_line() -> None:
    request = replace(REQUEST, reserves={"xpu:1": 9 * GiB})
    with pytest.raises(BadInput, match=r"xpu:1.*leave nothing after a margin of 0.25 GiB") as no:
        budget.apply(worker_of(1, SMALL), Settings(), request, SMALL, None)
    assert len(str(no.value).splitlines()) == 1


def test_a_vllm_without_that_figure_is_refused() -> None:
    with pytest.raises(HostMismatch, match="requested_memory is gone"):
        budget.apply(SimpleNamespace(rank=0), Settings(), REQUEST, BIG, planned())


def explicit(asked: int, small: Device = SMALL) -> Plan:
    """The worker's plan for --kv-cache-memory-bytes."""
    request = replace(REQUEST, kv_memory=(asked,), gpu_memory_utilization=1.0)
    without = planned(replace(request, kv_memory=None), small)
    return planned(budget.with_explicit_cache(request, without), small)


def test_an_explicit_cache_is_an_upper_bound_on_every_device() -> None:
    modest = explicit(2 * GiB)
    assert [stage.kv_available_bytes for stage in modest.stages] == [2 * GiB] * 2
    much = explicit(20 * GiB)
    assert much.stages[0].kv_available_bytes == 20 * GiB
    small = much.stages[1]
    left = 9 * GiB - GiB - 256 * MiB - small.weights_bytes - small.workspace_bytes
    assert small.kv_available_bytes == left
    assert small.unused_bytes >= 0
    for rank, stage in enumerate(much.stages):
        got = budget.cache_share(much, rank, 20 * GiB, explicit=True)
        assert got == stage.kv_available_bytes


def test_an_explicit_cache_does_not_decide_where_layers_go() -> None:
    """The size alone would split evenly whatever the cards hold."""
    tiny = Device("xpu:1", DeviceMemory(24 * MiB, 24 * MiB))
    request = replace(REQUEST, max_num_batched_tokens=16, max_num_seqs=1)
    profile = load_profile(HYBRID_MODEL)
    without = make_plan(profile, [BIG, tiny], request)
    bounded = budget.with_explicit_cache(replace(request, kv_memory=(GiB,)), without)
    assert bounded.partition == without.partition.counts
    assert bounded.kv_memory is not None
    assert bounded.kv_memory[1] < 24 * MiB


def test_a_measured_cache_on_a_device_of_its_own_is_the_hosts() -> None:
    assert budget.cache_share(planned(), 1, 123, explicit=False) == 123
    assert budget.cache_share(None, 1, 123, explicit=True) == 123


def test_stages_on_one_device_share_it() -> None:
    node = Device("cpu:0", DeviceMemory(12 * GiB, 9 * GiB))
    plan = make_plan(load_profile(HYBRID_MODEL), [node, node], replace(REQUEST, platform="cpu"))
    shares = [budget.cache_share(plan, rank, 9 * GiB, explicit=False) for rank in (0, 1)]
    assert shares == [stage.kv_available_bytes for stage in plan.stages]
    assert sum(shares) <= REQUEST.budget(node)


def node_plan(asked: int, free: int, stages: int, partition: tuple[int, ...] | None = None) -> Any:
    """(request, device, plan) of ``stages`` on one memory node with an explicit cache."""
    node = Device("cpu:0", DeviceMemory(64 * GiB, free))
    request = replace(REQUEST, platform="cpu", kv_memory=(asked,), partition=partition)
    return request, node, make_plan(load_profile(HYBRID_MODEL), [node] * stages, request)


@pytest.mark.parametrize("stages", [1, 2, 3])
@pytest.mark.parametrize("asked", [9 * GiB + 1, 20 * GiB, 10**15])
def test_an_explicit_cache_beyond_the_processors_memory_is_refused_with_what_fits(
    monkeypatch: pytest.MonkeyPatch, stages: int, asked: int
) -> None:
    on(monkeypatch, cpu=True)
    worker = SimpleNamespace(rank=stages - 1)
    request, node, plan = node_plan(asked, 9 * GiB, stages)
    with pytest.raises(BadInput, match=r"^--kv-cache-memory-bytes .*: \d+ bytes .* 9.00 GiB") as no:
        budget.apply(worker, Settings(), request, node, plan)
    assert len(str(no.value).splitlines()) == 1
    most = int(str(no.value).split()[-2])
    assert 9 * GiB / stages * 0.8 < most < 9 * GiB / stages
    for fits in (most, 3 << 20):
        request, node, plan = node_plan(fits, 9 * GiB, stages)
        budget.apply(worker, Settings(), request, node, plan)


def test_stages_of_one_node_take_an_explicit_cache_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each alone is below what is free; what counts is what their pools take in all."""
    on(monkeypatch, cpu=True)
    worker = SimpleNamespace(rank=0)
    with pytest.raises(BadInput, match="for 2 stages"):
        budget.apply(worker, Settings(), *node_plan(6 * GiB, 9 * GiB, 2))
    request, node, plan = node_plan(6 * GiB, 9 * GiB, 2, partition=(1, 7))
    with pytest.raises(BadInput, match="for 2 stages"):
        budget.apply(worker, Settings(), request, node, replace_pool(plan, 9 * GiB))
    budget.apply(worker, Settings(), request, node, replace_pool(plan, 3 * GiB))


def replace_pool(plan: Plan, size: int) -> Plan:
    """``plan`` whose stages take ``size`` bytes together."""
    each = size // len(plan.stages)
    return replace(plan, stages=tuple(replace(s, total_bytes=each + 1) for s in plan.stages))


def test_without_a_plan_the_processor_still_bounds_an_explicit_cache(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    on(monkeypatch, cpu=True)
    request, node, _ = node_plan(GiB, 9 * GiB, 1)
    budget.apply(SimpleNamespace(rank=0), Settings(), request, node, None)
    request = replace(request, kv_memory=(10 * GiB,))
    with pytest.raises(BadInput, match="at most 9663676416 fit"):
        budget.apply(SimpleNamespace(rank=0), Settings(), request, node, None)


# vLLM's check, in the module of a worker class as gpu_worker and xpu_worker import it.


def snapshot(device: Device) -> Any:
    memory = device.memory
    return SimpleNamespace(total_memory=memory.total, free_memory=memory.free, device_="xpu:1")


@pytest.fixture
def xpu_worker(monkeypatch: pytest.MonkeyPatch) -> Any:
    from vllm.v1.worker.utils import request_memory

    module: Any = ModuleType("fake_xpu_worker")
    module.request_memory = request_memory
    monkeypatch.setitem(sys.modules, module.__name__, module)

    class Worker:
        def init_device(self, device: Device, external: int = 0) -> int:
            given = (external,) if external else ()
            config = SimpleNamespace(gpu_memory_utilization=0.92)
            return int(module.request_memory(snapshot(device), config, *given))

    Worker.__module__ = module.__name__
    return Worker()


def test_less_free_than_the_fraction_does_not_end_the_start(xpu_worker: Any) -> None:
    with pytest.raises(ValueError, match="less than desired GPU memory utilization"):
        xpu_worker.init_device(SMALL)
    with budget.start_with_what_is_free(xpu_worker):
        assert xpu_worker.init_device(SMALL) == 9 * GiB
        assert xpu_worker.init_device(BIG) == math.ceil(0.92 * 32 * GiB)
        none = replace(SMALL, memory=DeviceMemory(12 * GiB, 0))
        assert xpu_worker.init_device(none) == 0, "the planner refuses that"
        with pytest.raises(ValueError, match=r"Externally held|external process"):
            xpu_worker.init_device(SMALL, external=GiB)
    with pytest.raises(ValueError, match="less than desired"):
        xpu_worker.init_device(SMALL)


def test_the_check_is_put_back_when_the_device_fails(xpu_worker: Any) -> None:
    original = sys.modules["fake_xpu_worker"].request_memory
    with pytest.raises(RuntimeError), budget.start_with_what_is_free(xpu_worker):
        raise RuntimeError
    assert sys.modules["fake_xpu_worker"].request_memory is original


def test_a_worker_whose_check_is_gone_is_refused() -> None:
    with (
        pytest.raises(HostMismatch, match="request_memory is gone"),
        budget.start_with_what_is_free(SimpleNamespace()),
    ):
        pass


@pytest.mark.parametrize("free", [0, -1, 13 * GiB])
def test_absurd_figures_are_refused_by_name(free: int) -> None:
    absurd = replace(SMALL, memory=DeviceMemory(12 * GiB, free))
    with pytest.raises(BadInput, match="device xpu:1"):
        planned(small=absurd)


def test_the_check_is_found_where_vllm_imports_it() -> None:
    gpu, xpu = "vllm.v1.worker.gpu_worker", "vllm.v1.worker.xpu_worker"
    for module, name, found in ((gpu, "Worker", [gpu]), (xpu, "XPUWorker", [xpu, gpu])):
        stage = type("Stage", (getattr(import_module(module), name),), {})
        assert [m.__name__ for m in budget._modules_with_check(stage)] == found


# All of stage_plan.agree, on two unequal cards, against what `arcpp plan` says of them.


@dataclass
class Cards:
    """Fakes of two workers that agree on a plan, one after the other."""

    monkeypatch: pytest.MonkeyPatch
    explicit: int | None = None
    fraction: float = 0.92

    def worker(self, rank: int) -> Any:
        device = (BIG, SMALL)[rank]
        cache = SimpleNamespace(
            kv_cache_memory_bytes=self.explicit,
            gpu_memory_utilization=self.fraction,
            user_specified_block_size=False,
            mamba_cache_mode="align",
            cache_dtype="auto",
            enable_prefix_caching=True,
            mamba_ssm_cache_dtype="auto",
        )
        model = SimpleNamespace(
            model="m", original_max_model_len=-1, max_model_len=32768, dtype="torch.bfloat16"
        )
        whole = SimpleNamespace(additional_config={}, lora_config=None, speculative_config=None)
        return SimpleNamespace(
            rank=rank,
            device=device.name,
            vllm_config=whole,
            model_config=model,
            cache_config=cache,
            scheduler_config=SimpleNamespace(max_num_seqs=256, max_num_batched_tokens=2048),
            parallel_config=SimpleNamespace(pipeline_parallel_size=2),
            init_snapshot=snapshot(device),
            requested_memory=-1,
        )

    def agree(self) -> list[tuple[Any, Plan]]:
        patch, facts = self.monkeypatch.setattr, []
        platform = SimpleNamespace(is_cpu=lambda: False, device_type="xpu")
        patch(stage_plan, "current_platform", platform)
        patch(stage_plan.model_files, "local_folder", lambda _worker: HYBRID_MODEL)
        memory = {device.name: device.memory for device in (BIG, SMALL)}
        patch(measure.device_memory, "measure", lambda name, *_: (memory[name], None))
        workers = [self.worker(rank) for rank in (0, 1)]
        measured = [measure.measure(worker, Settings()) for worker in workers]

        def gather(fact: Any) -> list[Any]:
            facts.append(fact)
            return measured if "total" in fact else [fact, fact]

        patch(stage_plan, "gather", gather)
        self.monkeypatch.setenv(PARTITION_VARIABLE, "")  # so that taking it away is undone, too
        self.monkeypatch.delenv(PARTITION_VARIABLE)
        made = []
        for worker in workers:
            plan = stage_plan.agree(worker)
            assert plan is not None
            os.environ.pop(PARTITION_VARIABLE, None)
            made.append((worker, plan))
        digests = {fact["digest"] for fact in facts if "digest" in fact}
        assert len(digests) == 1, "both ranks made the same plan"
        return made


def shell(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """``arcpp plan`` for the same two cards; the monitor's reserve has to be said."""
    plan_command.main(
        [
            str(HYBRID_MODEL), "--json", "--host", "vllm@0.32.0", "--dtype", "bfloat16",
            "--device", "xpu:0=32GiB:31GiB", "--device", "xpu:1=12GiB:9GiB",
            "--reserve", "xpu:1=1GiB", *arguments,
        ],
        standalone_mode=False,
    )  # fmt: skip
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


@pytest.mark.parametrize("fraction", [0.92, 0.4])
def test_workers_and_arcpp_plan_agree(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], fraction: float
) -> None:
    said = shell(capsys, "--gpu-memory-utilization", str(fraction))
    for rank, (worker, plan) in enumerate(Cards(monkeypatch, fraction=fraction).agree()):
        stage = said["stages"][rank]
        used = stage["weights_bytes"] + stage["workspace_bytes"]
        assert worker.requested_memory == used + stage["kv_available_bytes"]
        assert plan.num_blocks == said["num_blocks"]
        assert list(plan.partition.counts) == said["partition"]


def test_workers_bound_an_explicit_cache_by_their_own_card(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = shell(capsys, "--gpu-memory-utilization", "1")
    most = [stage["kv_available_bytes"] for stage in said["stages"]]
    for rank, (_, plan) in enumerate(Cards(monkeypatch, explicit=20 * GiB).agree()):
        share = budget.cache_share(plan, rank, 20 * GiB, explicit=True)
        assert share == min(20 * GiB, most[rank])
    assert most[1] < 20 * GiB < most[0]


# The setting device_memory.


def measured(monkeypatch: pytest.MonkeyPatch, settings: Settings) -> dict[str, Any]:
    worker = SimpleNamespace(device="xpu:1", init_snapshot=snapshot(SMALL))
    seen: list[Any] = []

    def fake(device: Any, total: int, free: int, declared: Any) -> tuple[DeviceMemory, None]:
        seen.append(declared)
        return DeviceMemory(total, free), None

    monkeypatch.setattr(measure.device_memory, "measure", fake)
    result = measure.measure(worker, settings)
    return {"declared": seen[0], **result}


def test_declared_memory_reaches_the_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    both = Settings(device_memory={"xpu:1": (16 * GiB, 15 * GiB), "xpu:0": (GiB, None)})
    declared = measured(monkeypatch, both)["declared"]
    assert (declared.source, declared.total, declared.free) == ("declared", 16 * GiB, 15 * GiB)
    assert measured(monkeypatch, Settings())["declared"] is None


def test_the_processor_cannot_be_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    on(monkeypatch, cpu=True)
    memory = DeviceMemory(GiB, GiB)
    monkeypatch.setattr(measure, "_memory_node", lambda: ("cpu:0", memory))
    with pytest.raises(BadInput, match="setting device_memory"):
        measure.measure(SimpleNamespace(), Settings(device_memory={"cpu:0": (GiB, None)}))


# On the CPU vLLM's own fraction stays, and only settings lower it.

CPU_PLAN: Any = SimpleNamespace(
    stages=(
        SimpleNamespace(device="cpu:0", free_bytes=1000, margin_bytes=100, reserve_bytes=50),
        SimpleNamespace(device="cpu:1", free_bytes=2000, margin_bytes=100, reserve_bytes=0),
    )
)


@pytest.mark.parametrize(
    ("settings", "rank", "requested", "left"),
    [
        (Settings(), 0, 920, 920),
        (Settings(margin=100), 0, 920, 850),
        (Settings(margin=100), 0, 800, 800),
        (Settings(reserve={"cpu:0": 50}), 0, 920, 850),
        (Settings(reserve={"cpu:0": 50}), 1, 1990, 1990),
        (Settings(margin=100), 1, 1990, 1900),
    ],
)
def test_on_the_processor_only_settings_lower_what_vllm_takes(
    monkeypatch: pytest.MonkeyPatch, settings: Settings, rank: int, requested: int, left: int
) -> None:
    on(monkeypatch, cpu=True)
    process = SimpleNamespace(memory_info=lambda: SimpleNamespace(rss=0))
    monkeypatch.setattr(budget.psutil, "Process", lambda: process)
    worker = SimpleNamespace(rank=rank, requested_cpu_memory=requested)
    budget.apply(worker, settings, REQUEST, BIG, CPU_PLAN)
    assert worker.requested_cpu_memory == left


def test_a_vllm_without_the_processors_figure_is_refused_only_when_it_is_needed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    on(monkeypatch, cpu=True)
    worker = SimpleNamespace(rank=0)
    budget.apply(worker, Settings(), REQUEST, BIG, CPU_PLAN)
    with pytest.raises(HostMismatch, match="requested_cpu_memory is gone"):
        budget.apply(worker, Settings(margin=1), REQUEST, BIG, CPU_PLAN)
