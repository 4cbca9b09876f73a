"""``arcpp plan``: options of the contract, text or JSON out."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from arcpp.devices import Device
from arcpp.errors import BadInput, DoesNotFit
from arcpp.explain import alternatives
from arcpp.fromlog import Row, compare
from arcpp.hooks import Hooks, hooks_for
from arcpp.plan import Plan
from arcpp.probe import FoundDevice
from arcpp.probe.choose import device_ids
from arcpp.profile import ModelProfile
from arcpp.reorder import best_order
from arcpp.request import PlanRequest
from arcpp.settings import read_settings
from arcpp.startlog import StartLog, read_log
from arcpp.units import size_span

from .answer import Answer, refusal_json, refusal_text
from .options import build_request, cards_of, devices_of, given_options, not_used
from .plan_options import with_options


@click.command("plan")
@click.argument("model")
@with_options
def plan_command(model: str, *, from_log: Path | None, reorder: bool, **options: Any) -> int:
    """Plan which layers of MODEL go on which card, before a byte of weights is read.

    MODEL is a folder with config.json and weights, or a bare config.json. Exit code 0: it fits;
    2: it does not, and the message says what is missing; 1: bad input.
    """
    if from_log is None:
        return _answer(model, None, {}, reorder=reorder, **options)
    if reorder:
        right = "was written by stages in their order: it cannot be used with --reorder"
        raise BadInput("--from-log", str(from_log), right)
    log, given = read_log(from_log), given_options(click.get_current_context())
    taken = log.taken(given)
    with _told_by_log({*taken, "max_model_len"} - given):
        return _answer(model, log, taken, reorder=False, **options)


@contextmanager
def _told_by_log(names: Collection[str]) -> Iterator[None]:
    """Say of a wrong value of an option, one of ``names``, that the log holds it."""
    try:
        yield
    except BadInput as error:
        if error.what.removeprefix("--").replace("-", "_") not in names:
            raise
        raise type(error)(f"{error.what} in the log", error.value, error.right) from error


def _answer(
    model: str,
    log: StartLog | None,
    taken: Mapping[str, object],
    *,
    as_json: bool,
    weights_dtype: str | None,
    explain: bool,
    svg: Path | None,
    reorder: bool,
    **options: Any,
) -> int:
    """Plan and print; ``taken``: options that ``log`` says instead of the user."""
    settings = read_settings()
    hooks = hooks_for(settings)
    request = build_request({**options, **taken}, settings)
    if log is not None:
        request = log.as_run(request)
    # Before devices are asked for: a reserve that is set takes the place of the device's own.
    request = replace(request, reserves={**settings.reserve, **request.reserves})
    devices = devices_of(options["device"], request, hooks)
    settings.reserves_on(devices)
    request = replace(request, platform=_platform(devices))
    if log is not None:
        devices, request = log.apart(devices, request)
    profile = hooks.model_profile(
        model, weights_dtype=weights_dtype, dtype=request.dtype, host=request.host
    )
    try:
        if reorder:
            devices = list(best_order(profile, devices, request, hooks.plan))
        plan, request = _planned(hooks, profile, devices, request, log)
    except DoesNotFit as error:
        if as_json:
            click.echo(json.dumps(refusal_json(error, request)))
        elif error.needs:
            click.echo(refusal_text(error))
        raise
    hooks.plan_made(plan, None)
    cards = cards_of(options["device"], devices, request)
    plan = replace(plan, host_args=(*plan.host_args, *_order_arguments(cards, request)))
    if request.kv_memory is not None and options["kv_memory"] is not None:
        said = _rounded(hooks, profile, devices, request, plan=plan, text=options["kv_memory"])
        plan = replace(plan, warnings=(*plan.warnings, *said))
    if log is not None:
        doubts = log.doubts(plan, profile.architecture)
        plan = replace(plan, warnings=(*plan.warnings, *doubts))
    if svg is not None:
        from arcpp.picture import write_svg

        write_svg(plan, svg)
    rows = None
    if log is not None:
        rows = _compared(hooks, profile, devices, request, plan=plan, log=log)
    neighbours = alternatives(profile, devices, request, plan, hooks.plan) if explain else None
    answer = Answer(
        model=model,
        plan=plan,
        request=request,
        devices=devices,
        cards=cards,
        rest=[] if options["device"] else not_used(cards),
        neighbours=neighbours,
        rows=rows,
        taken=taken,
    )
    click.echo(json.dumps(answer.to_json()) if as_json else answer.to_text())
    return 0


def _planned(
    hooks: Hooks,
    profile: ModelProfile,
    devices: Sequence[Device],
    request: PlanRequest,
    log: StartLog | None,
) -> tuple[Plan, PlanRequest]:
    """The plan, and the request it was made for: with a log, less what the processes took. The
    options of the host stay those that were asked for."""
    plan = hooks.plan(profile, devices, request)
    if log is None:
        return plan, request
    request = log.with_processes(request, plan)
    return replace(hooks.plan(profile, devices, request), host_args=plan.host_args), request


def _rounded(
    hooks: Hooks,
    profile: ModelProfile,
    devices: Sequence[Device],
    request: PlanRequest,
    *,
    plan: Plan,
    text: str,
) -> tuple[str, ...]:
    """What ``--kv-memory`` leaves open that was copied from a log, which rounds."""
    spans, held = [size_span(part) for part in text.split(",")], []
    if all(low == high for low, high in spans):
        return ()
    for sizes in zip(*spans, strict=True):
        given = replace(request, kv_memory=sizes, partition=plan.partition.counts, brief=True)
        try:
            held.append(hooks.plan(profile, devices, given).num_blocks)
        except DoesNotFit:
            held.append(0)
    if held[0] == held[1]:
        return ()
    return (f"--kv-memory {text}, if a log rounded it, is {held[0]:,} to {held[1]:,} blocks",)


def _compared(
    hooks: Hooks,
    profile: ModelProfile,
    devices: Sequence[Device],
    request: PlanRequest,
    *,
    plan: Plan,
    log: StartLog,
) -> tuple[Row, ...]:
    """The plan against the log, and against itself with the KV memory that was logged."""
    again = None
    if request.kv_memory is None and len(log.available_gib) == len(devices):
        given = replace(request, kv_memory=log.kv_memory, partition=plan.partition.counts)
        try:
            again = hooks.plan(profile, devices, replace(given, brief=True))
        except DoesNotFit:
            again = None
    return compare(plan, log, again)


def _platform(devices: Sequence[Device]) -> str | None:
    """ "cuda" for devices probed as such; None leaves it to the planner."""
    return "cuda" if all(device.name.startswith("cuda:") for device in devices) else None


def _order_arguments(cards: Sequence[FoundDevice], request: PlanRequest) -> tuple[str, ...]:
    """What makes the host use ``cards`` in this order."""
    return device_ids(cards) if request.host == "vllm" else ()
