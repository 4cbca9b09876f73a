"""A hybrid model on two stages, one process each, beside the same model in one process.

arcpp's plan cuts it, the boundary crosses arcpp's link, recurrent state lies in SlotPools. Both
stages work the same schedule out for themselves, so nothing crosses but the boundary, and, over a
link of host memory, the tokens that come back.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch

from arcpp.backends.links import arcpp_open_link
from arcpp.backends.torch_devices import synchronize
from arcpp.backends.torch_state import TorchTables
from arcpp.devices import Device, DeviceMemory
from arcpp.link import BoundarySpec, LinkEnd, TensorSpec
from arcpp.plan import Plan
from arcpp.planner import PlanRequest, make_plan
from arcpp.profile import ModelProfile, load_profile
from arcpp.settings import Settings
from arcpp.stage_state import pool_size, state_arrays
from arcpp.state import PoolSize, Slot, SlotPool

from .hybrid_model import Batch, Sizes, Stage, make_exact
from .link_peers import Pair, Peer, nothing, over_group

PATIENCE = 60.0
RUN_S = 240.0
#: Free memory of the two devices, as shares of the model's weights.
SHARES = (0.85, 0.62)


@dataclass(frozen=True)
class Request:
    """prompt: its tokens. answer: how many tokens are generated."""

    prompt: tuple[int, ...]
    answer: int


@dataclass(frozen=True)
class Turn:
    """A request's part of a step. start: position of its first token; count: of its tokens: the
    whole prompt, or one. ends: it has its last token then, and leaves its slot."""

    request: int
    start: int
    count: int
    ends: bool


@dataclass(frozen=True)
class Job:
    """What every process is told. dtype: of weights and boundary. cut: layers of the first stage.
    pool, arrays: size of the pools and, by stage, what a place of them consists of."""

    sizes: Sizes
    dtype: str
    devices: tuple[str, str]
    requests: tuple[Request, ...]
    cut: int
    pool: PoolSize
    arrays: tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]

    @property
    def most_tokens(self) -> int:
        """Of one step."""
        return max(sum(turn.count for turn in turns) for turns in schedule(self))

    def boundary(self) -> BoundarySpec:
        """The largest hop."""
        shape = (self.most_tokens, self.sizes.hidden)
        return BoundarySpec((TensorSpec("hidden", self.dtype, shape),))


@dataclass
class Found:
    """What one process found. texts: generated tokens by request, where it saw them. began, ended:
    of its own work, a step each, on the clock that all processes of a machine share. came: when
    the answer to a step was there, on the first stage. slots: rows of the KV
    cache, by request. layer_bytes: of the weights."""

    texts: list[list[int]] = field(default_factory=list)
    began: list[float] = field(default_factory=list)
    ended: list[float] = field(default_factory=list)
    came: list[float] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    layer_bytes: list[int] = field(default_factory=list)
    links: dict[str, dict[str, Any]] = field(default_factory=dict)
    card: str = ""


def random_requests(count: int, sizes: Sizes, seed: int = 1) -> tuple[Request, ...]:
    """Prompts of 3 to 20 tokens, answers of a sixth to almost a half of the longest text."""
    chosen = random.Random(seed)
    return tuple(
        Request(
            tuple(chosen.randrange(sizes.vocab) for _ in range(chosen.randint(3, 20))),
            chosen.randint(sizes.length // 6, sizes.length * 5 // 12),
        )
        for _ in range(count)
    )


def plan_of(sizes: Sizes, dtype: str, slots: int, folder: Path) -> tuple[ModelProfile, Plan]:
    """arcpp's plan for two unequal devices, neither of which has room for the whole model."""
    config = sizes.write(folder, dtype)
    profile = load_profile(config, weights_dtype=dtype, dtype=dtype)
    rooms = [int(profile.weights_bytes * share) for share in SHARES]
    devices = [
        Device(name, DeviceMemory(room, room))
        for name, room in zip(("larger", "smaller"), rooms, strict=True)
    ]
    asked = PlanRequest(
        dtype=dtype, max_num_seqs=slots, max_model_len=sizes.length, max_num_batched_tokens=64,
        margin=0,
    )  # fmt: skip
    return profile, make_plan(profile, devices, asked)


def planned_job(
    sizes: Sizes,
    dtype: str,
    devices: tuple[str, str],
    *,
    requests: Sequence[Request],
    slots: int,
    folder: Path,
) -> tuple[Job, Plan]:
    """The job, cut where the plan for ``slots`` requests at once says. folder: for config.json."""
    profile, plan = plan_of(sizes, dtype, slots, folder)
    cut = plan.partition.counts[0]
    arrays = state_arrays(profile, 0, cut), state_arrays(profile, cut, sizes.layers)
    return Job(sizes, dtype, devices, tuple(requests), cut, pool_size(plan), arrays), plan


def schedule(job: Job) -> Iterator[list[Turn]]:
    """Steps: a token of every running request, and the prompt of one more where a slot is free.

    Known beforehand, because every answer's length is.
    """
    waiting, done = list(range(len(job.requests))), dict[int, int]()
    while waiting or done:
        turns = []
        for number, tokens in done.items():
            start = len(job.requests[number].prompt) + tokens - 1
            turns.append(Turn(number, start, 1, tokens + 1 == job.requests[number].answer))
        if waiting and len(done) < job.pool.slots:
            number = waiting.pop(0)
            done[number] = 0
            request = job.requests[number]
            turns.append(Turn(number, 0, len(request.prompt), request.answer == 1))
        yield turns
        done = {turn.request: done[turn.request] + 1 for turn in turns if not turn.ends}


class Places(Protocol):
    """Where requests keep what they keep."""

    def begin(self, request: int) -> None: ...

    def windows(self, requests: Sequence[int]) -> list[tuple[int, int]]:
        """(place that is read, place that is written) of each, for one step."""
        ...

    def row(self, request: int) -> int:
        """Of the KV cache, and of whatever else has one per request."""
        ...

    def end(self, request: int) -> None: ...

    def check(self) -> None: ...


class OwnPlaces:
    """A place of its own for every request, zero at first and used by nobody else: what a pool is
    compared with knows nothing of pools."""

    def __init__(self, tables: TorchTables) -> None:
        tables.zero(range(tables.places))

    def begin(self, request: int) -> None:
        pass

    def windows(self, requests: Sequence[int]) -> list[tuple[int, int]]:
        return [(request, request) for request in requests]

    def row(self, request: int) -> int:
        return request

    def end(self, request: int) -> None:
        pass

    def check(self) -> None:
        pass


class PooledPlaces:
    """Slots of a pool, which were anything before and are reused as they were left."""

    def __init__(self, pool: SlotPool) -> None:
        self.pool = pool
        self.held: dict[int, Slot] = {}

    def begin(self, request: int) -> None:
        self.held[request] = self.pool.acquire(request)

    def windows(self, requests: Sequence[int]) -> list[tuple[int, int]]:
        found = [self.pool.step(self.held[request]) for request in requests]
        return [(window.read, window.writes[0]) for window in found]

    def row(self, request: int) -> int:
        return self.held[request].number

    def end(self, request: int) -> None:
        self.pool.release(self.held.pop(request))

    def check(self) -> None:
        self.pool.check_integrity()


class Runner:
    """Layers [low, high) over places, and the batches of a job on them."""

    def __init__(
        self, job: Job, low: int, high: int, pooled: Callable[[SlotPool], Places] | None
    ) -> None:
        self.job, self.device = job, job.devices[0 if low == 0 else 1]
        make_exact(self.device)
        arrays = (job.arrays[0] if low == 0 else ()) + (job.arrays[1] if high > job.cut else ())
        places = job.pool.places if pooled else len(job.requests)
        tables = TorchTables.allocate(arrays, places, self.device)
        for tensor in tables.tensors.values():
            tensor.fill_(float("nan"))  # whatever reads what was not written shows at once
        self.places = pooled(SlotPool(tables, job.pool)) if pooled else OwnPlaces(tables)
        self.stage = Stage(
            job.sizes, low, high, dtype=getattr(torch, job.dtype), device=self.device,
            state=tables.tensors, rows=job.pool.slots if pooled else len(job.requests),
        )  # fmt: skip
        self.found = Found(layer_bytes=self.stage.layer_bytes(), card=card(self.device))

    def batch(self, turns: Sequence[Turn]) -> Batch:
        """The step's batch on the device, with slots for those that begin."""
        for turn in turns:
            if turn.start == 0:
                self.places.begin(turn.request)
                self.found.slots.append(self.places.row(turn.request))
        windows = self.places.windows([turn.request for turn in turns])
        spans, at = [], 0
        for turn in turns:
            spans.append((at, turn.count))
            at += turn.count
        positions = [p for turn in turns for p in range(turn.start, turn.start + turn.count)]
        rows = [self.places.row(turn.request) for turn in turns for _ in range(turn.count)]
        return Batch(
            self._numbers(positions), self._numbers(rows), spans,
            self._numbers([read for read, _ in windows]),
            self._numbers([write for _, write in windows]),
            self._numbers([first + count - 1 for first, count in spans]),
        )  # fmt: skip

    def release(self, turns: Sequence[Turn]) -> None:
        """Slots of those that have their last token are free again."""
        for turn in turns:
            if turn.ends:
                self.places.end(turn.request)

    def inputs(self, turns: Sequence[Turn]) -> torch.Tensor:
        """The step's tokens: prompts, and what was generated last."""
        tokens: list[int] = []
        for turn in turns:
            if turn.start == 0:
                tokens += self.job.requests[turn.request].prompt
            else:
                tokens.append(self.found.texts[turn.request][-1])
        return self._numbers(tokens)

    def heard(self, turns: Sequence[Turn], tokens: Sequence[int]) -> None:
        for turn, token in zip(turns, tokens, strict=True):
            self.found.texts[turn.request].append(token)

    def _numbers(self, numbers: Sequence[int]) -> torch.Tensor:
        return torch.tensor(numbers, device=self.device)


@torch.inference_mode()
def run_alone(_: Any, job: Job) -> Found:
    """The whole model in this process, every request with state of its own."""
    runner = Runner(job, 0, job.sizes.layers, None)
    found, stage = runner.found, runner.stage
    found.texts = [[] for _ in job.requests]
    for turns in schedule(job):
        found.began.append(time.perf_counter())
        batch = runner.batch(turns)
        tokens = stage.sample(stage.through(stage.embed(runner.inputs(turns)), batch), batch)
        runner.heard(turns, tokens.tolist())
        found.ended.append(time.perf_counter())
    return found


@torch.inference_mode()
def run_first(links: Links, job: Job, pooled: Callable[[SlotPool], Places]) -> Found:
    """The first stage: its layers, a hop, and the tokens that come back."""
    runner = Runner(job, 0, job.cut, pooled)
    found, stage = runner.found, runner.stage
    found.texts = [[] for _ in job.requests]
    links.meet()
    for turns in schedule(job):
        found.began.append(time.perf_counter())
        batch = runner.batch(turns)
        hidden = stage.through(stage.embed(runner.inputs(turns)), batch)
        synchronize(torch, torch.device(job.devices[0]))
        found.ended.append(time.perf_counter())
        links.forward.send({"hidden": hidden}, timeout=PATIENCE)
        runner.release(turns)
        tokens = links.back.recv(timeout=PATIENCE)["tokens"]
        found.came.append(time.perf_counter())
        runner.heard(turns, tokens.tolist())
    runner.places.check()
    found.links = links.described()
    return found


@torch.inference_mode()
def run_last(links: Links, job: Job, pooled: Callable[[SlotPool], Places]) -> Found:
    """The last stage: what came over the hop, its layers, and the tokens."""
    runner = Runner(job, job.cut, job.sizes.layers, pooled)
    found, stage = runner.found, runner.stage
    links.meet()
    for turns in schedule(job):
        batch = runner.batch(turns)
        hidden = links.forward.recv(timeout=PATIENCE)["hidden"]
        found.began.append(time.perf_counter())
        tokens = stage.sample(stage.through(hidden, batch), batch).cpu()
        found.ended.append(time.perf_counter())
        links.back.send({"tokens": tokens}, timeout=PATIENCE)
        runner.release(turns)
    runner.places.check()
    return found


class Links:
    """Both links of one rank: the boundary from device to device, tokens back in host memory."""

    def __init__(self, rank: int, job: Job, settings: Settings) -> None:
        import torch.distributed as dist

        self._group = dist.new_group(ranks=[0, 1], backend="gloo")
        device, tokens = job.devices[rank], TensorSpec("tokens", "int64", (job.pool.slots,))
        forward = LinkEnd(
            "stage0->stage1", rank == 0, 1 - rank, device, self._group, job.boundary()
        )
        self.forward: Any = arcpp_open_link(forward, settings)
        back = LinkEnd(
            "stage1->stage0", rank == 1, 1 - rank, "cpu", self._group, BoundarySpec((tokens,))
        )
        self.back: Any = arcpp_open_link(back, settings)

    def meet(self) -> None:
        """Both stages are here."""
        import torch.distributed as dist

        dist.barrier(group=self._group)

    def described(self) -> dict[str, dict[str, Any]]:
        """Kind, pages and notes of each, as this end knows them."""
        ends = {"boundary": self.forward, "tokens": self.back}
        return {
            name: {
                "kind": end.kind,
                "pinning": getattr(end, "pinning", "host"),
                "notes": list(end.notes),
            }
            for name, end in ends.items()
        }

    def close(self) -> None:
        self.forward.close()
        self.back.close()


def run_both(pair: Pair, job: Job, settings: Settings, places: type = PooledPlaces) -> list[Found]:
    """First and last stage in the two processes of ``pair``. places: what makes the places of a
    pool. AssertionError with what went wrong in either."""
    pair.open(over_group(partial(open_links, job, settings)))
    pair.receiver.start(run_last, job, places)
    pair.sender.start(run_first, job, places)
    deadline = time.monotonic() + RUN_S
    found: dict[Peer, Found] = {}
    while len(found) < 2:
        for peer in (pair.sender, pair.receiver):
            late = time.monotonic() > deadline
            if peer not in found and (late or peer.answered(0.05)):
                found[peer] = peer.result(0)  # whoever failed first says so: the other waits
    return [found[pair.sender], found[pair.receiver]]


def run_one(pair: Pair, job: Job) -> Found:
    """The whole model in the first process of ``pair``."""
    pair.open(over_group(nothing))
    pair.sender.start(run_alone, job)
    found: Found = pair.sender.result(RUN_S)
    return found


def open_links(job: Job, settings: Settings, rank: int) -> Links:
    """Both links of one rank, on its device."""
    place = torch.device(job.devices[rank])
    if place.type != "cpu":
        torch.get_device_module(place).set_device(place)
    return Links(rank, job, settings)


def card(device: str) -> str:
    """What the device is."""
    place = torch.device(device)
    if place.type == "cpu":
        return "host memory"
    return str(torch.get_device_module(place).get_device_name(place))
