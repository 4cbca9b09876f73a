"""The best order of devices: every order that differs is planned, and the number of them bounded.

Cards that are equal in all but their names may change places without changing a plan, so of the
orders that differ in nothing else only the first is tried.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from itertools import islice

from .costs import decode_prices
from .devices import Device
from .errors import BadInput, DoesNotFit
from .plan import Plan
from .planner import Planner, make_plan
from .profile.model import ModelProfile
from .request import PlanRequest

__all__ = ["best_order"]

#: Six cards that all differ. A plan takes some ten milliseconds, so all of them take seconds.
MOST_ORDERS = 720
_MOST_DEVICES = 32


def best_order(
    profile: ModelProfile,
    devices: Sequence[Device],
    request: PlanRequest,
    planner: Planner = make_plan,
) -> tuple[Device, ...]:
    """The order of ``devices`` whose plan is best by the objective; the given one on ties, and
    when no order fits. planner: who plans, where a hook may.

    Raises BadInput for more orders than can be tried, and where memory is given by stage.
    """
    if request.kv_memory is not None:
        right = "is by stage, in the order that is given: it cannot be used with --reorder"
        raise BadInput("--kv-memory", list(request.kv_memory), right)
    few = len(devices) <= _MOST_DEVICES
    orders = list(islice(_orders(tuple(devices), request), MOST_ORDERS + 1)) if few else []
    if not few or len(orders) > MOST_ORDERS:
        right = (
            f"devices have more than {MOST_ORDERS} orders that differ, too many to try: name equal "
            "cards with equal figures, or leave --reorder out"
        )
        raise BadInput("--reorder", len(devices), right)
    brief = replace(request, brief=True)
    best: tuple[tuple[int, ...], tuple[Device, ...]] | None = None
    for order in orders:
        try:
            plan = planner(profile, order, brief)
        except DoesNotFit:
            continue
        score = _score(plan, request, order)
        if best is None or score > best[0]:
            best = score, order
    return tuple(devices) if best is None else best[1]


def _orders(devices: tuple[Device, ...], request: PlanRequest) -> Iterator[tuple[Device, ...]]:
    """Orders of ``devices`` that differ in more than names, the given one first."""
    kinds = [_kind(device, request) for device in devices]

    def ways(begun: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if len(begun) == len(devices):
            yield begun
            return
        seen: set[Hashable] = set()
        for index, device in enumerate(devices):
            if index in begun:
                continue
            # A name that is there already is a stage more on that card; others are alike.
            again = device.name if any(devices[i].name == device.name for i in begun) else None
            count = sum(other.name == device.name for other in devices)
            if (kinds[index], count, again) not in seen:
                seen.add((kinds[index], count, again))
                yield from ways((*begun, index))

    for order in ways(()):
        yield tuple(devices[index] for index in order)


def _kind(device: Device, request: PlanRequest) -> Hashable:
    """Everything a plan may depend on but the name."""
    return (
        device.memory,
        device.bandwidth_gb_s,
        request.allocation_limit(device),
        device.is_cpu,
        request.reserves.get(device.name, 0),
    )


def _score(plan: Plan, request: PlanRequest, order: Sequence[Device]) -> tuple[int, ...]:
    prices = decode_prices(order)
    speed = -sum(s.active_bytes * price for s, price in zip(plan.stages, prices, strict=True))
    if request.maximize == "decode":
        return speed, plan.kv_cache_tokens
    if request.maximize == "concurrency":
        return plan.max_num_seqs, speed, plan.kv_cache_tokens
    return plan.kv_cache_tokens, speed
