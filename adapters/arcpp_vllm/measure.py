"""What a stage measures of its device, and what all stages' measurements say together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import psutil
from vllm.platforms import current_platform

from arcpp.backends.torch_devices import allocation_limit
from arcpp.devices import AllocationLimit, Device, DeviceMemory
from arcpp.errors import BadInput
from arcpp.probe import DECLARED, Reading
from arcpp.settings import Settings
from arcpp.units import format_gib

from . import device_memory


def measure(worker: Any, settings: Settings) -> dict[str, Any]:
    """This stage's device and its memory in bytes, as the host's own worker measured it.

    used: what this process holds already and vLLM counts against the device's budget. On an
    accelerator the host's figures are checked against other sources (see device_memory), and
    the setting device_memory wins; BadInput for one of the CPU, whose memory vLLM takes itself.
    """
    used, limit = 0, None
    if current_platform.is_cpu():
        name, memory = _memory_node()
        if name in settings.device_memory:
            right = "is the processor, for which vLLM takes --gpu-memory-utilization of its memory"
            raise BadInput("setting device_memory", name, right)
        used = psutil.Process().memory_info().rss
    else:
        snapshot = worker.init_snapshot
        name = str(worker.device)
        total, free = settings.device_memory.get(name, (None, None))
        declared = None if total is None else Reading(DECLARED, total, free)
        memory, _ = device_memory.measure(
            worker.device, snapshot.total_memory, snapshot.free_memory, declared
        )
        limit = allocation_limit(worker.device)
    return {
        "device": name,
        "total": memory.total,
        "free": memory.free,
        "reserve": memory.reserve,
        "used": used,
        "source": memory.source,
        "single": None if limit is None else [limit.size, limit.source],
    }


def devices_of(measured: Sequence[Mapping[str, Any]], reserves: Mapping[str, int]) -> list[Device]:
    """One device per stage, in stage order. reserves: device name -> bytes the user reserved,
    which replace what the device reserves by itself.

    Stages on one device measured it at different moments: all get the smallest figures.
    """
    least: dict[str, DeviceMemory] = {}
    for seen in measured:
        name = seen["device"]
        own = 0 if name in reserves else seen["reserve"]
        here = DeviceMemory(seen["total"], seen["free"], own, seen["source"])
        known = least.setdefault(name, here)
        least[name] = replace(
            known,
            total=min(known.total, here.total),
            free=min(known.free, here.free),
            reserve=max(known.reserve, here.reserve),
        )
    limits = {
        seen["device"]: AllocationLimit(*seen["single"]) for seen in measured if seen.get("single")
    }
    return [
        Device(name, least[name], max_allocation=limits.get(name))
        for name in (seen["device"] for seen in measured)
    ]


def utilization(cache_config: Any, measured: Sequence[Mapping[str, Any]]) -> float:
    """The host's fraction of a device, less what the stages' own processes take of it.

    Less only on the CPU, where vLLM counts a worker's whole resident memory against its fraction.
    On an accelerator an explicit size of the cache replaces the fraction, in vLLM too: then 1.
    Raises BadInput when nothing is left.
    """
    if cache_config.kv_cache_memory_bytes is not None and not current_platform.is_cpu():
        return 1.0
    fraction = float(cache_config.gpu_memory_utilization)
    used, total = sum(seen["used"] for seen in measured), measured[0]["total"]
    if used and cache_config.kv_cache_memory_bytes is None:
        if used >= fraction * total:
            right = (
                f"of {format_gib(total)} GiB is taken up by the processes of {len(measured)} "
                f"stages alone ({format_gib(used)} GiB): raise it"
            )
            raise BadInput("--gpu-memory-utilization", fraction, right)
        fraction -= used / total
    return fraction


def _memory_node() -> tuple[str, DeviceMemory]:
    """Name and memory of the memory node this process runs on."""
    from vllm.utils.cpu_resource_utils import get_allowed_cpu_list, get_memory_node_info

    node = get_allowed_cpu_list()[0].numa_node
    info = get_memory_node_info(node)
    # More free than there is: memory that was added since the node's total was counted.
    free = min(info.available_memory, info.total_memory)
    return f"cpu:{node}", DeviceMemory(info.total_memory, free, source="memory node")
