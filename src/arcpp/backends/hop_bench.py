"""One of the two processes of ``arcpp bench hop``: moves payloads and takes the time.

``python -m arcpp.backends.hop_bench RANK FOLDER WANTED`` meets the other rank over a file in
FOLDER; WANTED is a JSON object of :class:`Wanted`. Rank 0 prints one JSON object a line: first what
is compared ("ways"), then each figure ("way"), and between them how far it has come ("done" "of").
All ways are measured in turns within one run, so that they meet the same machine.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from arcpp.settings import Settings

from .hop_ways import CollectiveWay, GlooWay, LinkWay, RawCopies, Way, collective_of
from .torch_devices import synchronize

RAW = "raw copies"
_LINKS = {
    "ring": Settings(link="ring", link_verification="descriptor"),
    "ring, verified": Settings(link="ring", link_verification="device"),
    "p2p": Settings(link="p2p", link_verification="descriptor"),
}


@dataclass(frozen=True)
class Wanted:
    """devices: of rank 0 and 1. sizes: payload bytes. ways: names, empty for all that can be.
    rounds: how often each is measured; the median counts. seconds: of one measurement, about.
    ends_with_input: end when standard input does, because nobody wants the answer any more."""

    devices: tuple[str, str]
    sizes: tuple[int, ...]
    ways: tuple[str, ...]
    rounds: int
    seconds: float
    ends_with_input: bool = False


class Bench:
    """All ways, opened, on one rank."""

    def __init__(self, rank: int, wanted: Wanted, group: Any) -> None:
        self.rank, self.wanted, self.group = rank, wanted, group
        devices = torch.device(wanted.devices[0]), torch.device(wanted.devices[1])
        self.device, largest = devices[rank], max(wanted.sizes)
        makers: dict[str, Callable[[], Way]] = {RAW: lambda: RawCopies(self.device, largest)}
        for name, settings in _LINKS.items():
            if name != "p2p" or "p2p" in wanted.ways:
                makers[name] = partial(LinkWay, rank, self.device, largest, group, settings)
        makers["gloo"] = lambda: GlooWay(rank, self.device, largest, group)
        library = collective_of(devices)
        if library is not None:
            of_devices = dist.new_group(ranks=[0, 1], backend=library)
            makers[library] = lambda: CollectiveWay(rank, self.device, of_devices)
        chosen = wanted.ways or tuple(makers)
        self.ways = {name: make() for name, make in makers.items() if name in chosen}
        self.payload = torch.randint(0, 256, (largest,), dtype=torch.uint8, device=self.device)

    def run(self) -> None:
        """Measure everything, smallest size first; rank 0 prints."""
        self.say(self.compared())
        sizes = sorted(self.wanted.sizes)
        for turn, size in enumerate(sizes):
            rounds: dict[str, list[tuple[float, float]]] = {name: [] for name in self.ways}
            for done in range(self.wanted.rounds):
                for name, way in self.ways.items():
                    self.meet()
                    rounds[name].append(self.measure(way, size))
                total = self.wanted.rounds * len(sizes)
                self.say({"done": turn * self.wanted.rounds + done + 1, "of": total})
            for name, found in rounds.items():
                self.say(_figure(name, size, found))

    def compared(self) -> dict[str, Any]:
        """What is compared, as rank 0 has it: the links behind the ways, the cards, torch."""
        links = {name: way for name, way in self.ways.items() if isinstance(way, LinkWay)}
        return {
            "ways": list(self.ways),
            "links": {name: way.describe() for name, way in links.items()},
            "cards": [_card(torch.device(device)) for device in self.wanted.devices],
            "torch": str(torch.__version__),
        }

    def measure(self, way: Way, size: int) -> tuple[float, float]:
        """(seconds one way, bytes per second of many hops in a row) of rank 0."""
        payload = self.payload[:size]
        if isinstance(way, RawCopies):
            return self.raw_of_both(way, payload)
        times = self.agree(self.timed(way, payload, 3) / 3)
        one_way = self.timed(way, payload, times) / times / 2
        self.meet()
        return one_way, size * times / self.streamed(way, payload, times)

    def timed(self, way: Way, payload: torch.Tensor, times: int) -> float:
        """Seconds of ``times`` round trips; every byte comes to rest on a device each way."""
        began = time.perf_counter()
        for _ in range(times):
            if self.rank == 0:
                way.send(payload)
                way.recv(payload.numel())
            else:
                way.send(way.recv(payload.numel()))
        return time.perf_counter() - began

    def streamed(self, way: Way, payload: torch.Tensor, times: int) -> float:
        """Seconds until the last of ``times`` hops in a row has been acknowledged."""
        began = time.perf_counter()
        if self.rank == 0:
            for _ in range(times):
                way.send(payload)
            way.recv(1)
        else:
            for _ in range(times):
                way.take(payload.numel())
            synchronize(torch, self.device)
            way.send(payload[:1])
        return time.perf_counter() - began

    def raw_of_both(self, copies: RawCopies, payload: torch.Tensor) -> tuple[float, float]:
        """One device after the other: a hop there and back takes both copies of each.

        The mean of their times, the rate of the slower one; once where both ends are one device.
        """
        found = torch.zeros(2, 2, dtype=torch.float64)
        alike = len({str(torch.device(device)) for device in self.wanted.devices}) == 1
        for rank in (0,) if alike else (0, 1):
            if rank == self.rank:
                found[rank] = torch.tensor(self.raw(copies, payload), dtype=torch.float64)
            self.meet()
        dist.all_reduce(found, group=self.group)
        measured = found[:1] if alike else found
        return float(measured[:, 0].mean()), float(measured[:, 1].min())

    def raw(self, copies: RawCopies, payload: torch.Tensor) -> tuple[float, float]:
        """Sum of both copies, each waited for; rate of the slower direction."""
        both = copies.both(payload)
        both()
        times = self.times(_seconds(both))
        one_way = _seconds(lambda: [both() for _ in range(times)]) / times
        slower = max(_seconds(partial(copies.stream, payload, times, out)) for out in (True, False))
        return one_way, payload.numel() * times / slower

    def times(self, seconds: float) -> int:
        """How often something of ``seconds`` fits into one measurement."""
        return max(3, min(2000, int(self.wanted.seconds / max(seconds, 1e-7))))

    def agree(self, seconds: float) -> int:
        """times(), as rank 0 has it."""
        times = torch.tensor([self.times(seconds)])
        dist.broadcast(times, 0, group=self.group)
        return int(times.item())

    def meet(self) -> None:
        """Both ranks are here."""
        synchronize(torch, self.device)
        dist.barrier(group=self.group)

    def say(self, line: dict[str, Any]) -> None:
        """Print ``line``, on rank 0."""
        if self.rank == 0:
            print(json.dumps(line), flush=True)

    def close(self) -> None:
        """Close every way."""
        for way in self.ways.values():
            way.close()


def _figure(name: str, size: int, found: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """What rank 0 found in all rounds."""
    return {
        "way": name,
        "size": size,
        "one_way_s": statistics.median(one for one, _ in found),
        "bytes_per_s": statistics.median(rate for _, rate in found),
    }


def _card(device: torch.device) -> str:
    if device.type == "cpu":
        return "host memory"
    return str(torch.get_device_module(device).get_device_name(device))


def _end_with_input() -> None:
    """End this process when whoever started it closes our standard input, or is gone."""

    def watch() -> None:
        while os.read(0, 4096):
            pass
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _take_own_cores(rank: int) -> None:
    """Keep the two ranks, which both look for each other's words, off each other's cores.

    Not where a rank would have one core: gloo has threads of its own, which would share it.
    """
    allowed = sorted(os.sched_getaffinity(0))
    siblings = Path("/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list")
    try:
        core_of = {cpu: Path(str(siblings).format(cpu)).read_text() for cpu in allowed}
    except OSError:
        return
    cores = sorted(set(core_of.values()))
    if len(cores) >= _ENOUGH_CORES:
        os.sched_setaffinity(0, {c for c in allowed if cores.index(core_of[c]) % 2 == rank})


_ENOUGH_CORES = 8


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def main(arguments: Sequence[str]) -> int:
    """Run as one rank."""
    rank, folder, said = int(arguments[0]), arguments[1], json.loads(arguments[2])
    wanted = Wanted(
        (said["devices"][0], said["devices"][1]),
        tuple(said["sizes"]), tuple(said["ways"]), said["rounds"], said["seconds"],
        said.get("ends_with_input", False),
    )  # fmt: skip
    if wanted.ends_with_input:
        _end_with_input()
    torch.set_num_threads(1)
    _take_own_cores(rank)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    if torch.device(wanted.devices[rank]).type != "cpu":
        torch.get_device_module(wanted.devices[rank]).set_device(torch.device(wanted.devices[rank]))
    dist.init_process_group("gloo", init_method=f"file://{folder}/met", rank=rank, world_size=2)
    bench = Bench(rank, wanted, dist.new_group(ranks=[0, 1], backend="gloo"))
    try:
        bench.run()
        bench.meet()
    finally:
        bench.close()
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
