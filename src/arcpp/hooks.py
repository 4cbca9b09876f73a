"""Asking the hooks: the one place that calls them, for the command line and the adapters alike.

Answers are checked here, so that a plugin's mistake is told as the plugin's. What a plugin
raises passes as it is when it is one of arcpp's own errors; anything else becomes a PluginError.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

from .devices import Device
from .errors import ArcppError, BadInput, PluginError, StagesDisagree
from .link import LinkEnd, LinkReceiver, LinkSender
from .partition import Partition, check_partition
from .plan import Plan
from .plugins import Plugins, loaded
from .profile import ModelProfile
from .request import PlanRequest
from .settings import Settings
from .supervise import Fault, FaultAction

_Kind = TypeVar("_Kind")


def hooks_for(settings: Settings) -> Hooks:
    """The hooks as ``settings`` want them; plugins are loaded once per process.

    Raises PluginError and BadInput, one line, for plugins that cannot be used or found.
    """
    return Hooks(loaded(settings.load_plugins, settings.trace_hooks), settings)


class Hooks:
    """Each method asks one hook. All raise PluginError for an answer that cannot be."""

    def __init__(self, plugins: Plugins, settings: Settings) -> None:
        self.plugins, self.settings = plugins, settings

    def probe_devices(self, host: str | None = None) -> tuple[Device, ...]:
        """Devices of this machine, plugins' first; of equal names the first. May be empty."""
        by_name: dict[str, Device] = {}
        name = "arcpp_probe_devices"
        for answer in self._ask(name, settings=self.settings, host=host):
            if not isinstance(answer, (list, tuple)):
                raise self._wrong(name, f"returned {_shown(answer)}, not a list of Device")
            for device in (self._of_kind(name, found, Device) for found in answer):
                by_name.setdefault(device.name, device)
        return tuple(by_name.values())

    def model_profile(
        self,
        path: str | Path,
        *,
        weights_dtype: str | None = None,
        dtype: str | None = None,
        host: str | None = None,
    ) -> ModelProfile:
        """Profile of the model at ``path`` for ``host``. Raises BadInput and its kinds."""
        name, given = "arcpp_model_profile", {"weights_dtype": weights_dtype, "dtype": dtype}
        found = self._ask(name, path=Path(path), **given, host=host)
        return self._of_kind(name, found, ModelProfile)

    def plan(self, profile: ModelProfile, devices: Sequence[Device], request: PlanRequest) -> Plan:
        """The plan for ``devices``, one per stage. Raises DoesNotFit, BadInput."""
        name = "arcpp_plan"
        found = self._ask(name, profile=profile, devices=tuple(devices), request=request)
        plan = self._of_kind(name, found, Plan)
        try:
            check_partition(plan.partition, len(profile.layers), len(devices), "the plan")
        except BadInput as error:
            raise self._wrong(name, str(error)) from error
        ranges = [(stage.low, stage.high) for stage in plan.stages]
        if ranges != [(stage.low, stage.high) for stage in plan.partition.stages]:
            raise self._wrong(name, f"returned stages that are not those of {plan.partition}")
        if request.partition is not None and plan.partition != Partition(request.partition):
            wanted = Partition(request.partition)
            raise self._wrong(name, f"changed the partition {wanted} to {plan.partition}")
        return plan

    def plan_made(self, plan: Plan, stage: int | None) -> None:
        """Tell of ``plan``; stage as in the hook."""
        self._ask("arcpp_plan_made", plan=plan, settings=self.settings, stage=stage)

    def open_sender(self, end: LinkEnd) -> LinkSender:
        """The sending ``end``, opened."""
        return self._opened(end, LinkSender)  # type: ignore[type-abstract]

    def open_receiver(self, end: LinkEnd) -> LinkReceiver:
        """The receiving ``end``, opened."""
        return self._opened(end, LinkReceiver)  # type: ignore[type-abstract]

    def fault(self, fault: Fault, attempt: int) -> FaultAction | None:
        """What plugins want done about ``fault``; None leaves it to the restart policy."""
        name = "arcpp_fault"
        action = self._ask(name, fault=fault, attempt=attempt, settings=self.settings)
        return None if action is None else self._of_kind(name, action, FaultAction)

    def recovered(self, fault: Fault, seconds: Mapping[str, float]) -> None:
        """Tell that stages run again after ``fault``; seconds by phase."""
        phases = dict(seconds)
        self._ask("arcpp_recovered", fault=fault, seconds=phases, settings=self.settings)

    def _opened(self, end: LinkEnd, kind: type[_Kind]) -> _Kind:
        name = "arcpp_open_link"
        opened = self._of_kind(name, self._ask(name, end=end, settings=self.settings), kind)
        if not isinstance(getattr(opened, "kind", None), str):
            raise self._wrong(name, f"returned {_shown(opened)}, which has no kind")
        return opened

    def _ask(self, hook: str, **given: Any) -> Any:
        try:
            return getattr(self.plugins.hook, hook)(**given)
        except ArcppError:
            raise
        except Exception as error:
            culprit = self.plugins.raised_in(hook, error)
            if culprit is None:
                raise
            problem = f"{hook} raised {type(error).__name__}: {error}"
            raise PluginError(culprit.name, culprit.version, problem) from error

    def _of_kind(self, hook: str, answer: object, kind: type[_Kind]) -> _Kind:
        if not isinstance(answer, kind):
            raise self._wrong(hook, f"returned {_shown(answer)}, not a {kind.__name__}")
        return answer

    def _wrong(self, hook: str, what: str) -> PluginError:
        """An answer does not say who gave it: name everybody it may have come from."""
        asked = [one for one in self.plugins.implementations(hook) if not one.built_in]
        names = " or ".join(dict.fromkeys(one.package for one in asked)) or "arcpp"
        versions = " or ".join(dict.fromkeys(one.version for one in asked))
        return PluginError(names, versions, f"{hook} {what}")


def plan_fact(plan: Plan | None) -> dict[str, str]:
    """What stages exchange to see that they made the same plan: partition, and digest of it all."""
    if plan is None:
        return {"partition": "none", "digest": ""}
    text = json.dumps(asdict(plan), sort_keys=True, default=str)
    return {
        "partition": str(plan.partition),
        "digest": hashlib.sha256(text.encode()).hexdigest()[:12],
    }


def check_same_plan(facts: Sequence[dict[str, str]]) -> None:
    """Refuse stages whose plans differ. facts: every stage's plan_fact(). Raises StagesDisagree."""
    if any(fact != facts[0] for fact in facts):
        raise StagesDisagree(
            "the plan",
            tuple(f"{fact['partition']} ({fact['digest'] or 'no plan'})" for fact in facts),
            "a plugin's arcpp_model_profile or arcpp_plan returns different things to each",
        )


def check_same_kinds(facts: Sequence[dict[str, str | None]]) -> None:
    """Refuse links with ends of different kinds. Raises StagesDisagree.

    facts: the kind each stage "sends" over and "receives" over, or None, in stage order.
    """
    for before, after in pairwise(facts):
        if before["sends"] != after["receives"]:
            raise StagesDisagree(
                "links",
                tuple(
                    f"receives over {fact['receives']} and sends over {fact['sends']}"
                    for fact in facts
                ),
                "a plugin's arcpp_open_link must answer both ends of a link alike",
            )


def _shown(answer: object) -> str:
    return "nothing" if answer is None else type(answer).__name__
