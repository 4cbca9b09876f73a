"""``arcpp plan``: options of the contract, text or JSON out."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from arcpp.devices import Device
from arcpp.errors import DoesNotFit
from arcpp.explain import Alternative, alternatives, explain_lines
from arcpp.fromlog import Row, StartLog, compare, read_log, rows_text
from arcpp.hooks import hooks_for
from arcpp.planner import Plan, best_order, make_plan
from arcpp.probe import FoundDevice
from arcpp.probe.choose import device_ids, numbering
from arcpp.profile import ModelProfile
from arcpp.request import GOALS, PlanRequest
from arcpp.settings import read_settings
from arcpp.units import GiB

from .options import build_request, cards_of, devices_of

Command = Callable[..., Any]

_OPTIONS: tuple[tuple[tuple[str, ...], dict[str, Any]], ...] = (
    (
        ("--device",),
        {
            "multiple": True,
            "metavar": "NAME=TOTAL[:FREE][@GBPS]",
            "help": "A card; repeat in stage order (or xpu:0, cpu: measured); default: all.",
        },
    ),
    (("--host",), {"metavar": "vllm[@VERSION]|openvino", "help": "Default: the installed vLLM."}),
    (("--partition",), {"metavar": "60,4", "help": "Layers per stage; default: the best."}),
    (
        ("--kv-memory",),
        {"metavar": "SIZE[,SIZE...]", "help": "Available KV memory per stage, as a log shows it."},
    ),
    (("--gpu-memory-utilization",), {"type": float, "help": "As in vLLM (its default)."}),
    (("--block-size",), {"type": int, "help": "As in vLLM."}),
    (("--mamba-cache-mode",), {"metavar": "none|align|all", "help": "As in vLLM."}),
    (("--max-model-len",), {"metavar": "N|auto", "help": "Default: the longest that fits."}),
    (("--max-num-seqs",), {"type": int, "help": "As in vLLM."}),
    (("--max-num-batched-tokens",), {"type": int, "help": "As in vLLM."}),
    (("--dtype",), {"help": "Activations: float16, bfloat16 or float32; default: the model's."}),
    (("--kv-cache-dtype",), {"default": "auto", "show_default": True, "help": "As in the host."}),
    (
        ("--weights-dtype",),
        {"help": "Size weights from the config in this format: fp8, int8, int4, mxfp4, float16."},
    ),
    (("--spec-tokens",), {"type": int, "default": 0, "help": "Draft tokens per step (MTP)."}),
    (("--block-align",), {"type": int, "help": "Multiple a hybrid's block is rounded up to."}),
    (
        ("--prefix-caching/--no-prefix-caching",),
        {"default": None, "help": "Default: as in the host's version."},
    ),
    (("--margin",), {"metavar": "SIZE", "help": "Left free on every card (256MiB)."}),
    (
        ("--reserve",),
        {"multiple": True, "metavar": "NAME=SIZE", "help": "Promised to others on a card."},
    ),
    (
        ("--maximize",),
        {
            "type": click.Choice(GOALS),
            "default": GOALS[0],
            "show_default": True,
            "metavar": "|".join(GOALS),
            "help": "What the best split has most of.",
        },
    ),
    (("--reorder",), {"is_flag": True, "help": "Try the cards in every order."}),
    (
        ("--large-allocations",),
        {"is_flag": True, "help": "OpenVINO: GPU_ENABLE_LARGE_ALLOCATIONS is on."},
    ),
    (("--explain",), {"is_flag": True, "help": "What binds, and what one layer more would do."}),
    (("--svg",), {"type": click.Path(path_type=Path), "help": "Write a picture of the plan."}),
    (
        ("--from-log",),
        {"type": click.Path(path_type=Path), "help": "Compare with a vLLM start-up log."},
    ),
    (("--json", "as_json"), {"is_flag": True, "help": "Print one JSON object."}),
)


def _with_options(command: Command) -> Command:
    for names, settings in reversed(_OPTIONS):
        command = click.option(*names, **settings)(command)
    return command


@click.command("plan")
@click.argument("model")
@_with_options
def plan_command(
    model: str,
    *,
    as_json: bool,
    weights_dtype: str | None,
    explain: bool,
    svg: Path | None,
    from_log: Path | None,
    reorder: bool,
    **options: Any,
) -> int:
    """Plan which layers of MODEL go on which card, before a byte of weights is read.

    MODEL is a folder with config.json and weights, or a bare config.json. Exit code 0: it fits;
    2: it does not, and the message says what is missing; 1: bad input.
    """
    settings = read_settings()
    hooks = hooks_for(settings)
    request = build_request(options, settings)
    log = None if from_log is None else read_log(from_log)
    if log is not None:
        request = log.as_run(request)
    devices = devices_of(options["device"], request, hooks)
    reserves = settings.reserves_on(devices) | dict(request.reserves)
    request = replace(request, reserves=reserves, platform=_platform(devices))
    profile = hooks.model_profile(model, weights_dtype=weights_dtype, dtype=request.dtype)
    try:
        if reorder:
            devices = list(best_order(profile, devices, request))
        plan = hooks.plan(profile, devices, request)
    except DoesNotFit as error:
        if as_json:
            click.echo(json.dumps(_refusal_json(error, request)))
        elif error.needs:
            click.echo(_needs_text(error))
        raise
    hooks.plan_made(plan, None)
    cards = cards_of(options["device"], devices, request)
    plan = replace(plan, host_args=(*plan.host_args, *_order_arguments(cards, request)))
    if svg is not None:
        from arcpp.picture import write_svg

        write_svg(plan, svg)
    rows = () if log is None else _compared(profile, devices, request, plan, log)
    neighbours = alternatives(profile, devices, request, plan) if explain else ()
    if as_json:
        click.echo(
            json.dumps(_json(plan, cards, neighbours if explain else None, rows if log else None))
        )
        return 0
    lines = [_text(plan), *_cards_text(devices, cards)]
    lines += explain_lines(plan, neighbours) if explain else ()
    lines += rows_text(rows) if rows else ()
    click.echo("\n".join(lines))
    return 0


def _json(
    plan: Plan,
    cards: Sequence[FoundDevice],
    neighbours: Sequence[Alternative] | None,
    rows: Sequence[Row] | None,
) -> dict[str, Any]:
    """The plan's object, with what was probed, explained and compared where it was."""
    result = plan.to_json()
    if cards:
        result["devices"] = [card.to_json() for card in cards]
    if neighbours is not None:
        result["explain"] = [other.to_json() for other in neighbours]
    if rows is not None:
        result["log"] = [row.to_json() for row in rows]
    return result


def _compared(
    profile: ModelProfile,
    devices: Sequence[Device],
    request: PlanRequest,
    plan: Plan,
    log: StartLog,
) -> tuple[Row, ...]:
    """The plan against the log, and against itself with the KV memory that was logged."""
    again = None
    if len(log.available_gib) == len(devices):
        memory = tuple(int(log.available_gib[rank] * GiB) for rank in sorted(log.available_gib))
        given = replace(request, kv_memory=memory, partition=plan.partition.counts)
        try:
            again = make_plan(profile, devices, given)
        except DoesNotFit:
            again = None
    return compare(plan, log, again)


def _platform(devices: Sequence[Device]) -> str | None:
    """ "cuda" for devices probed as such; None leaves it to the planner."""
    return "cuda" if all(device.name.startswith("cuda:") for device in devices) else None


def _order_arguments(cards: Sequence[FoundDevice], request: PlanRequest) -> tuple[str, ...]:
    """What makes the host use ``cards`` in this order."""
    return device_ids(cards) if request.host == "vllm" else ()


def _cards_text(devices: Sequence[Device], cards: Sequence[FoundDevice]) -> list[str]:
    """Which card each device is, where its figures come from, and both hosts' numbering."""
    lines = []
    for device, card in zip(devices, cards, strict=False):
        lines += [numbering(card, device.name), f"  free memory from {device.memory.source}"]
        lines += [f"  {card.verdict.doubt}"] if card.verdict.doubt else []
    order = device_ids(cards)
    if order:
        lines.append(f"for vLLM in this order: {' '.join(order)}")
    return lines


def _refusal_json(error: DoesNotFit, request: PlanRequest) -> dict[str, Any]:
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


def _needs_text(error: DoesNotFit) -> str:
    from arcpp.report import needs_text

    return needs_text(error.needs)


def _text(plan: Plan) -> str:
    from arcpp.report import plan_text

    return plan_text(plan)
