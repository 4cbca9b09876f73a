"""Read what a vLLM start-up log says.

Lines are found by their text, whatever stands before it; ranks by ``PP<n>`` or ``rank=<n>`` in
the line's prefix, else by order of appearance. The file is read line by line and is bounded.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO

from .devices import Device
from .errors import BadInput
from .logsettings import STAGES, options_in, version_in
from .memory.versions import vllm_version
from .plan import Plan
from .request import PlanRequest
from .units import GiB

_LIMIT = 32 * 1024**2  # a start is some 100 lines; what follows it grows for as long as it serves
_LINE = 16_000  # with all arguments of a server
_RANK = re.compile(r"(?:_PP|\bPP|rank=|Rank |arcpp: stage )(\d{1,3})\b|_PP(\d{1,3})")
_GIB = r"(-?\d{1,7}(?:\.\d{1,6})?)"
_WEIGHTS = re.compile(rf"Model loading took {_GIB} ?GiB|Loading model weights took {_GIB} ?GiB")
_AVAILABLE = re.compile(
    rf"Available KV cache memory: {_GIB} ?GiB|(?:Auto|Explicitly) set \({_GIB}/"
)
_EXACT = re.compile(r"Available KV cache memory: \S{1,20} GiB \((\d{1,15}) bytes\)")
_CONSUMED = re.compile(rf"{_GIB} GiB memory was consumed by non-kv usages")
_NODE = re.compile(rf"Auto set \({_GIB}/{_GIB}\) GiB for KV cache on node")
_TOKENS = re.compile(r"KV cache size: (\d{1,3}(?:,\d{3}){0,5}|\d{1,15}) tokens")
_LENGTH = re.compile(r"[Cc]oncurrency for (\d{1,3}(?:,\d{3}){0,5}|\d{1,15}) tokens per request")
_BLOCKS = re.compile(
    r"# (?:GPU|CPU|XPU) blocks: (\d{1,12})|num_gpu_blocks is: (\d{1,12})|"
    r"arcpp: stage .{1,200} GiB in (\d{1,12}) blocks"
)
_ARCHITECTURE = re.compile(r"Resolved architecture: (\w{1,80})")
_BLOCK = re.compile(r"Setting attention block size to (\d{1,9}) tokens")


@dataclass
class StartLog:
    """What a log says. version, options: of the server, the latter by the names of ``arcpp plan``'s
    options, as written there. weights_gib, available_gib, consumed_gib: by rank; the last is what a
    CPU worker's process held beside the cache. node_gib: the memory node of CPU workers. arcpp:
    whether arcpp's worker wrote it. architecture: of the model. Others: None when not logged."""

    weights_gib: dict[int, float] = field(default_factory=dict)
    available_gib: dict[int, float] = field(default_factory=dict)
    consumed_gib: dict[int, float] = field(default_factory=dict)
    node_gib: float | None = None
    kv_cache_tokens: int | None = None
    max_model_len: int | None = None
    num_blocks: int | None = None
    block_tokens: int | None = None
    arcpp: bool = False
    architecture: str | None = None
    version: str | None = None
    options: dict[str, object] = field(default_factory=dict)

    def taken(self, given: Container[str]) -> dict[str, object]:
        """Options of ``arcpp plan`` that this server ran with and that are not ``given`` there.

        Raises BadInput for a version arcpp does not know.
        """
        found = {name: value for name, value in self.options.items() if name not in given}
        stages = found.pop(STAGES, 1)
        if "kv_memory" in found and isinstance(stages, int) and 1 <= stages <= 1000:
            found["kv_memory"] = ",".join([str(found["kv_memory"])] * stages)
        if self.version is not None and "host" not in given:
            try:
                vllm_version(self.version)
            except BadInput as error:
                right = f"of vLLM is stated there and {error.right}: name one with --host"
                raise BadInput("--from-log: version", self.version, right) from None
            found["host"] = f"vllm@{self.version}"
        return found

    def as_run(self, request: PlanRequest) -> PlanRequest:
        """``request`` as this server ran it: its length where none is asked for, and on a stock
        vLLM the duplicates that arcpp's worker would have dropped."""
        if request.max_model_len is None and self.max_model_len is not None:
            request = replace(request, max_model_len=self.max_model_len)
        return request if self.arcpp else replace(request, dropped_roles=frozenset())

    def apart(
        self, devices: Sequence[Device], request: PlanRequest
    ) -> tuple[list[Device], PlanRequest]:
        """Stages that share a device, as stock vLLM runs them: each takes its whole fraction.

        Only arcpp's worker shares the device's budget among them.
        """
        names = [device.name for device in devices]
        if self.arcpp or len(set(names)) == len(names):
            return list(devices), request
        own = [f"{name}/{index}" for index, name in enumerate(names)]
        reserves = {
            mine: request.reserves[name]
            for mine, name in zip(own, names, strict=True)
            if name in request.reserves
        }
        named = [replace(device, name=mine) for device, mine in zip(devices, own, strict=True)]
        return named, replace(request, reserves=reserves)

    def with_processes(self, request: PlanRequest, plan: Plan) -> PlanRequest:
        """``request`` less what the workers' own processes took of their fraction.

        A CPU worker counts all of its resident memory, which no plan can know: what it logged,
        beyond the weights and workspace of ``plan``, comes off the fraction.
        """
        node = self.node_gib or 0.0
        if request.kv_memory is not None or node <= 0:
            return request
        taken = [
            max(0.0, self.consumed_gib[rank] - (stage.weights_bytes + stage.workspace_bytes) / GiB)
            for rank, stage in enumerate(plan.stages)
            if rank in self.consumed_gib
        ]
        if not taken:
            return request
        shared = len({stage.device for stage in plan.stages}) < len(plan.stages)
        fraction = request.gpu_memory_utilization or request.vllm().gpu_memory_utilization
        fraction -= (sum(taken) if shared else max(taken)) / node
        return replace(request, gpu_memory_utilization=fraction) if fraction > 0 else request

    @property
    def has_figures(self) -> bool:
        """Whether it says anything that a plan predicts."""
        numbers = (self.kv_cache_tokens, self.num_blocks, self.block_tokens)
        return bool(self.weights_gib or self.available_gib) or any(n is not None for n in numbers)

    @property
    def stages(self) -> int:
        """How many stages the server had: as its options say, else as its figures do."""
        told = self.options.get(STAGES)
        ranks = (*self.weights_gib, *self.available_gib)
        return told if isinstance(told, int) else max(ranks, default=0) + 1

    def doubts(self, plan: Plan, architecture: str) -> tuple[str, ...]:
        """Why this log may not be of ``plan``, for a model of ``architecture``."""
        found = []
        if self.architecture is not None and self.architecture != architecture:
            found.append(f"the log is of a {self.architecture}, the plan of a {architecture}")
        if self.stages != len(plan.stages):
            found.append(
                f"the log is of {self.stages} stage{'' if self.stages == 1 else 's'}, the plan of "
                f"{len(plan.stages)}: name one --device for each of the log's"
            )
        return tuple(found)

    @property
    def kv_memory(self) -> tuple[int, ...]:
        """The logged available KV memory in bytes, in order of rank."""
        return tuple(round(self.available_gib[rank] * GiB) for rank in sorted(self.available_gib))


def read_log(path: Path) -> StartLog:
    """The figures in the log at ``path``, a plain file: a pipe or a device may never end. Raises
    BadInput when it holds none, cannot be read or is too large."""
    try:
        if path.exists() and not path.is_file():
            raise BadInput("--from-log", str(path), "is not a plain file: save the log in one")
        with path.open("rb") as file:
            found = parse_log(_bounded(file, path))
    except OSError as error:
        raise BadInput("--from-log", str(path), f"cannot be read: {error.strerror}") from None
    if not found.has_figures:
        raise BadInput("--from-log", str(path), "holds no start-up figures of vLLM")
    return found


def _bounded(file: BinaryIO, path: Path) -> Iterator[str]:
    """Lines, long ones in pieces; counted as read, because a log grows and sizes may lie."""
    read = 0
    while line := file.readline(_LINE):
        read += len(line)
        if read > _LIMIT:
            right = f"is too large (limit {_LIMIT} bytes): its first lines are enough"
            raise BadInput("--from-log", str(path), right)
        yield line.decode("utf-8", errors="replace")


def parse_log(lines: Iterable[str]) -> StartLog:
    """The figures in ``lines``; the last start counts where a log holds several."""
    log = StartLog()
    for line in lines:
        options = options_in(line)
        if options is not None:
            # What a server was started with comes before its figures: after some, it is another.
            log = StartLog(version=log.version) if log.has_figures else log
            log.options = options
        _figures(log, line)
        node = _NODE.search(line)
        log.node_gib = log.node_gib if node is None else float(node[2])
        log.kv_cache_tokens = _number(_TOKENS, line, log.kv_cache_tokens)
        log.max_model_len = _number(_LENGTH, line, log.max_model_len)
        log.num_blocks = _number(_BLOCKS, line, log.num_blocks)
        log.block_tokens = _number(_BLOCK, line, log.block_tokens)
        log.version = version_in(line) or log.version
        named = _ARCHITECTURE.search(line)
        log.architecture = log.architecture if named is None else named[1]
        log.arcpp = log.arcpp or "arcpp: the plan for" in line
    return log


def _figures(log: StartLog, line: str) -> None:
    """Put the figures of one rank that ``line`` holds into ``log``."""
    if "GiB" not in line:
        return
    for pattern, store in (
        (_WEIGHTS, log.weights_gib),
        (_AVAILABLE, log.available_gib),
        (_CONSUMED, log.consumed_gib),
    ):
        match = pattern.search(line)
        if match is not None:
            value = float(next(group for group in match.groups() if group is not None))
            exact = _EXACT.search(line) if store is log.available_gib else None
            value = value if exact is None else int(exact[1]) / GiB
            store[_rank(line[: match.start()], store)] = value


def _rank(prefix: str, seen: dict[int, float]) -> int:
    match = _RANK.search(prefix)
    if match is not None:
        return int(next(group for group in match.groups() if group is not None))
    return max(seen, default=-1) + 1


def _number(pattern: re.Pattern[str], line: str, before: int | None) -> int | None:
    match = pattern.search(line)
    if match is None:
        return before
    return int(next(group for group in match.groups() if group is not None).replace(",", ""))
