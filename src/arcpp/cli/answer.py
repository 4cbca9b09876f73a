"""What ``arcpp plan`` prints: one object as JSON, or a table and what explains it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arcpp.devices import Device
from arcpp.errors import DoesNotFit
from arcpp.explain import Alternative, explain_lines
from arcpp.fromlog import Row, rows_text
from arcpp.logsettings import option_text
from arcpp.plan import NOT_GIVEN, Plan
from arcpp.probe import FoundDevice
from arcpp.probe.choose import device_ids, name_of, numbering
from arcpp.request import PlanRequest
from arcpp.units import format_gib
from arcpp.vllm_args import command_lines
from arcpp.warn import mixes_processor


@dataclass(frozen=True)
class Answer:
    """A plan that fits and what was asked about it.

    cards: the probed cards that ``devices`` are; rest: what else was found. neighbours: with
    ``--explain``, else None. rows: with a log, else None; taken: options that it said.
    """

    model: str
    plan: Plan
    request: PlanRequest
    devices: Sequence[Device]
    cards: Sequence[FoundDevice]
    rest: Sequence[FoundDevice]
    neighbours: Sequence[Alternative] | None
    rows: Sequence[Row] | None
    taken: Mapping[str, object]

    def to_json(self) -> dict[str, Any]:
        """The plan's object, with what was probed, explained and compared where it was."""
        result = self.plan.to_json()
        if self.cards:
            result["devices"] = [card.to_json() for card in self.cards]
            result["devices_not_used"] = [card.to_json() for card in self.rest]
        if self.neighbours is not None:
            result["explain"] = [other.to_json() for other in self.neighbours]
        if self.rows is not None:
            result["log"] = [row.to_json() for row in self.rows]
            result["log_options"] = dict(self.taken)
        return result

    def to_text(self) -> str:
        """For people, at most 80 columns wide."""
        from arcpp.report import plan_text, wrapped

        lines = [*self._memory(), *self._cards(), *self._rest()]
        if self.neighbours is not None:
            lines += explain_lines(self.plan, self.neighbours)
        lines += self._taken()
        lines = [plan_text(self.plan), *wrapped(lines)]
        lines += rows_text(self.rows) if self.rows else ()
        return "\n".join([*lines, *(self._command() if self.rows is None else ())])

    def _memory(self) -> list[str]:
        """Total, free and reserved memory of each device that somebody described."""
        known = {
            stage.device: f"{stage.device} {format_gib(stage.device_bytes)}, "
            f"{format_gib(stage.free_bytes)}, {format_gib(stage.reserve_bytes)}"
            for stage in self.plan.stages
            if stage.memory_source != NOT_GIVEN
        }
        return [f"devices (total, free, reserve): {'; '.join(known.values())}"] if known else []

    def _cards(self) -> list[str]:
        """Which card each device is, where its figures come from, and both hosts' numbering."""
        lines = []
        for device, card in zip(self.devices, self.cards, strict=False):
            which, _, numbers = numbering(card, device.name).partition(", ")
            lines += [which, f"  {numbers}"] if numbers else [which]
            lines += [f"  free memory from {device.memory.source}"]
            lines += [f"  {card.verdict.doubt}"] if card.verdict.doubt else []
        order = device_ids(self.cards)
        if order:
            lines.append(f"for vLLM in this order: {' '.join(order)}")
        return lines

    def _rest(self) -> list[str]:
        """Devices that were found and are not planned for, and why."""
        why = {True: "integrated, used when named", False: "not seen by this host"}
        host = self.request.host
        return [
            f"not used ({why[card.integrated]}): {numbering(card, name_of(card, host))}"
            for card in self.rest
        ]

    def _taken(self) -> list[str]:
        """Which options were not given but taken from the log."""
        shown = ", ".join(option_text(name, value) for name, value in self.taken.items())
        return [f"as the log says: {shown}"] if self.taken else []

    def _command(self) -> list[str]:
        """The command to copy; nothing where vLLM could not run the plan. A bare config.json is no
        model to serve: MODEL stands for the folder. Reserves are for the reader to name: the
        server's devices need not be called as the plan's."""
        from arcpp.report import WIDTH

        if not self.plan.host.startswith("vllm") or mixes_processor(tuple(self.devices)):
            return []
        folder = self.model if Path(self.model).is_dir() else "MODEL"
        reserved = " with ARCPP_RESERVE=NAME=SIZE for what is reserved"
        begin = f"to run it{reserved if self.request.reserves else ''}:"
        return [begin, *command_lines(folder, self.plan, WIDTH)]


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


def refusal_text(error: DoesNotFit) -> str:
    """What each stage of a refused plan would need, as a table."""
    from arcpp.report import needs_text

    return needs_text(error.needs)
