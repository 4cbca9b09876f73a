"""From what several sources see to one list of devices, in PCI order. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from arcpp.devices import AllocationLimit, known_limit

from .identity import pci_from_intel_uuid, short_name, visible_cards
from .reading import Reading, Verdict, judge
from .sighting import OTHER, XPU, Sighting


@dataclass(frozen=True)
class FoundDevice:
    """One physical device, with what every source says of it.

    number: source -> how it numbers the device ("xpu:0", "GPU.1", "2"). by_order: sources whose
    sighting could be matched by model and order only. usable: False for integrated GPUs, which
    are used only when named.
    """

    name: str
    kind: str
    pci: str | None
    uuid: str | None
    integrated: bool
    display: bool
    driver: str | None
    max_allocation: AllocationLimit | None
    numbers: Mapping[str, str]
    verdict: Verdict
    by_order: tuple[str, ...] = ()

    @property
    def usable(self) -> bool:
        """Whether it is used without being named."""
        return not self.integrated

    def to_json(self) -> dict[str, Any]:
        """Fields by name; sizes in bytes."""
        limit = self.max_allocation
        return {
            "name": self.name,
            "kind": self.kind,
            "pci": self.pci,
            "uuid": self.uuid,
            "integrated": self.integrated,
            "display": self.display,
            "driver": self.driver,
            "max_allocation_bytes": limit.size if limit else None,
            "max_allocation_source": limit.source if limit else None,
            "numbers": dict(self.numbers),
            "matched_by_order": list(self.by_order),
            "memory": self.verdict.to_json(),
        }


@dataclass
class _Group:
    """Sightings that are the same device."""

    seen: list[Sighting] = field(default_factory=list)
    by_order: list[str] = field(default_factory=list)

    @property
    def sources(self) -> set[str]:
        return {sighting.source for sighting in self.seen}

    def first(self, attribute: str) -> Any:
        return next(
            (v for s in self.seen if (v := getattr(s, attribute)) is not None),
            None,
        )


def merge(
    sightings: Iterable[Sighting], environment: Mapping[str, str] | None = None
) -> tuple[FoundDevice, ...]:
    """One FoundDevice per physical device, in PCI order; those without an address last.

    The PCI address decides, then the UUID. Sightings without either are matched to devices of
    the same model, in order and under the masks in ``environment``, and only when the numbers of
    both agree; otherwise they stay devices of their own.
    """
    groups: list[_Group] = []
    loose: dict[str, list[Sighting]] = {}
    for sighting in sightings:
        group = _same(groups, sighting)
        if group is not None:
            group.seen.append(sighting)
        elif _pci(sighting) is not None or sighting.uuid is not None:
            groups.append(_Group([sighting]))
        else:
            loose.setdefault(sighting.source, []).append(sighting)
    for source, unmatched in loose.items():
        _match_by_order(groups, source, unmatched, environment or {})
    groups.sort(key=_order)
    return tuple(_found(group) for group in groups)


def _pci(sighting: Sighting) -> str | None:
    return sighting.pci or pci_from_intel_uuid(sighting.uuid)


def _same(groups: Sequence[_Group], sighting: Sighting) -> _Group | None:
    address, uuid = _pci(sighting), sighting.uuid
    for group in groups:
        if sighting.source in group.sources:
            continue  # a source shows a device once
        addresses = {_pci(seen) for seen in group.seen} - {None}
        if address is not None and addresses:
            if address in addresses:
                return group
        elif uuid is not None and uuid in {seen.uuid for seen in group.seen}:
            return group
    return None


def _match_by_order(
    groups: list[_Group],
    source: str,
    unmatched: Sequence[Sighting],
    environment: Mapping[str, str],
) -> None:
    """Pair loose sightings with groups of the same model when there are equally many of both."""
    known = sorted((g for g in groups if source not in g.sources), key=_order)
    if source == "torch":
        known = _visible(known, environment)
    for model in dict.fromkeys(_model(sighting) for sighting in unmatched):
        mine = [sighting for sighting in unmatched if _model(sighting) == model]
        theirs = [group for group in known if any(_model(seen) == model for seen in group.seen)]
        if len(mine) == len(theirs):
            for sighting, group in zip(mine, theirs, strict=True):
                group.seen.append(sighting)
                group.by_order.append(source)
        else:
            groups.extend(_Group([sighting]) for sighting in mine)


def _visible(groups: list[_Group], environment: Mapping[str, str]) -> list[_Group]:
    """Of ``groups``, those torch.xpu may see under the masks; others than Intel's stay."""
    mask, selector = environment.get("ZE_AFFINITY_MASK"), environment.get("ONEAPI_DEVICE_SELECTOR")
    intel = [group for group in groups if group.first("kind") == XPU]
    integrated = [bool(group.first("integrated")) for group in intel]
    shown = [intel[number] for number in visible_cards(integrated, mask, selector)]
    return [group for group in groups if group not in intel or group in shown]


def _model(sighting: Sighting) -> tuple[str, str]:
    return sighting.kind, short_name(sighting.name) or sighting.name


def _order(group: _Group) -> tuple[bool, str, int]:
    address = next((a for seen in group.seen if (a := _pci(seen)) is not None), None)
    return address is None, address or "", group.seen[0].index


def _found(group: _Group) -> FoundDevice:
    readings: list[Reading] = [r for sighting in group.seen for r in sighting.readings]
    names = [seen.name for seen in group.seen]
    name = next((each for each in names if short_name(each)), names[-1])
    limits = [AllocationLimit(s.max_allocation, s.source) for s in group.seen if s.max_allocation]
    known = known_limit(name)
    limits += [known] if known is not None else []
    kinds = [seen.kind for seen in group.seen if seen.kind != OTHER]
    return FoundDevice(
        name=name,
        kind=kinds[0] if kinds else OTHER,
        pci=next((a for seen in group.seen if (a := _pci(seen)) is not None), None),
        uuid=group.first("uuid"),
        integrated=any(seen.integrated is True for seen in group.seen),
        display=any(seen.display is True for seen in group.seen),
        driver=group.first("driver"),
        max_allocation=min(limits, key=lambda limit: limit.size, default=None),
        numbers={seen.source: seen.number for seen in group.seen if seen.number is not None},
        verdict=judge(readings),
        by_order=tuple(group.by_order),
    )
