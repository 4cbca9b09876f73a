"""Try the devices in every order: ``--reorder``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from math import factorial, prod

from .costs import decode_prices
from .devices import Device
from .errors import BadInput, DoesNotFit
from .plan import Plan
from .planner import Planner, make_plan
from .profile.model import ModelProfile
from .request import PlanRequest

MOST_ORDERS = 5040  # more would take minutes


def best_order(
    profile: ModelProfile,
    devices: Sequence[Device],
    request: PlanRequest,
    planner: Planner = make_plan,
) -> tuple[Device, ...]:
    """The order of ``devices`` whose plan is best by the objective; the given one on ties, and
    when no order fits. planner: who plans, where a hook may. Raises BadInput for more devices
    than can be tried.
    """
    count = orders_of(devices)
    if count > MOST_ORDERS:
        raise BadInput(
            "--reorder",
            len(devices),
            f"devices have {count} orders, too many to try (limit {MOST_ORDERS}, all of seven "
            "unlike devices): name fewer, or order them yourself",
        )
    best: tuple[tuple[int, ...], tuple[Device, ...]] | None = None
    for order in _orders(Counter(devices)):
        try:
            plan = planner(profile, order, request)
        except DoesNotFit:
            continue
        score = _score(plan, request, order)
        if best is None or score > best[0]:
            best = score, order
    return tuple(devices) if best is None else best[1]


def _score(plan: Plan, request: PlanRequest, order: Sequence[Device]) -> tuple[int, ...]:
    prices = decode_prices(order)
    speed = -sum(s.active_bytes * price for s, price in zip(plan.stages, prices, strict=True))
    if request.maximize == "decode":
        return speed, plan.kv_cache_tokens
    if request.maximize == "concurrency":
        return plan.max_num_seqs, speed, plan.kv_cache_tokens
    return plan.kv_cache_tokens, speed


def orders_of(devices: Sequence[Device]) -> int:
    """How many orders there are; equal devices (in everything, their name too) are one."""
    alike = Counter(devices).values()
    return factorial(len(devices)) // prod(factorial(count) for count in alike)


def _orders(left: Counter[Device]) -> Iterator[tuple[Device, ...]]:
    """Every order once, the given one first."""
    if not left.total():
        yield ()
        return
    for device in [one for one, count in left.items() if count]:
        rest = left.copy()
        rest[device] -= 1
        for order in _orders(rest):
            yield (device, *order)
