"""Every exception arcpp raises on purpose.

::

    ArcppError
    ├── BadInput             a value from the user is wrong: CLI exit code 1
    │   ├── BadSize          a size does not follow the grammar of arcpp.units
    │   ├── BadModel         a model folder, config or header cannot be used
    │   └── UnknownModel     an architecture nobody taught arcpp about
    ├── DoesNotFit           a plan exists for no partition: CLI exit code 2
    ├── HostMismatch         the host's internals are not what the adapter was written for
    ├── PluginError          a plugin cannot be loaded, or answered what no hook allows
    ├── BenchFailed          a measurement did not come to an end
    ├── StagesDisagree       stages that must decide alike decided differently
    ├── NonFinite            a boundary, or logits, hold what is no number
    ├── LinkError            a hop did not happen
    │   ├── PeerLost         the other end is gone
    │   ├── DeadlineExceeded the other end is there and silent
    │   └── LinkCorrupt      what arrived is not what was sent
    └── StateError           recurrent state cannot be had, or not like this
        ├── StateExhausted   every slot or snapshot is taken
        ├── StateCorrupt     state or its books are not what they must be
        └── SlotMisuse       a slot or snapshot was used against its rules
            ├── DoubleRelease    it was given back already
            ├── UseAfterRelease  it was given back, and maybe lent again
            └── ForeignSlot      it belongs to another pool

Errors carry fields as well as text, so that callers (CLI, adapters, hooks) need not parse
sentences. ``str(error)`` is always one line that a person can act on.
"""

from __future__ import annotations

from dataclasses import dataclass


class ArcppError(Exception):
    """Base of all. Catch this to catch whatever arcpp raises on purpose."""


#: In the place of a value that was not written at all.
UNSAID = object()


class BadInput(ArcppError):
    """Something the user wrote is wrong.

    what: the option, setting or file. value: what was written. right: what would be right.
    """

    def __init__(self, what: str, value: object, right: str) -> None:
        self.what, self.value, self.right = what, value, right
        shown = "" if value is UNSAID else f"{value!r} "
        if len(shown) > 200:
            shown = shown[:200] + "... "
        super().__init__(f"{_one_line(what)}: {shown}{_one_line(right)}")


class BadSize(BadInput):
    """A size that does not follow the grammar in :mod:`arcpp.units`."""


class BadModel(BadInput):
    """A model folder, ``config.json`` or weights header that cannot be used."""


class UnknownModel(BadInput):
    """An architecture that arcpp does not understand. It is refused, never guessed."""


@dataclass(frozen=True)
class StageNeed:
    """What one stage of a refused plan would need at least, in bytes.

    low, high: its layers [low, high). cache: for one request of the wanted length. budget: what
    arcpp may use on the device, which stages on the same device share.
    """

    device: str
    low: int
    high: int
    weights: int
    workspace: int
    cache: int
    budget: int

    @property
    def total(self) -> int:
        """Everything the stage needs."""
        return self.weights + self.workspace + self.cache


class DoesNotFit(ArcppError):
    """No allowed partition fits.

    stage: index of the stage that is short. device: its name. missing_bytes: how much it lacks.
    nearest: the nearest setting that fits, as text ready to paste, or None when none does.
    needs: every stage of the partition that lacks least, empty when it was not worked out.
    """

    def __init__(
        self,
        message: str,
        *,
        stage: int | None,
        device: str | None,
        missing_bytes: int,
        nearest: str | None,
        needs: tuple[StageNeed, ...] = (),
    ) -> None:
        self.stage, self.device, self.needs = stage, device, needs
        self.missing_bytes, self.nearest = missing_bytes, nearest
        super().__init__(message)


class HostMismatch(ArcppError):
    """A host internal that an adapter needs is gone or has another signature.

    host, version: what is installed. missing: the names that failed their probe.
    supported: the range of versions the adapter is for.
    """

    def __init__(self, host: str, version: str, missing: tuple[str, ...], supported: str) -> None:
        self.host, self.version, self.missing, self.supported = host, version, missing, supported
        super().__init__(
            f"arcpp does not know this {host} {version}: {', '.join(missing)} "
            f"(supported: {host} {supported})"
        )


class PluginError(ArcppError):
    """A plugin that cannot be used. package, version: its distribution. problem: what is wrong."""

    def __init__(self, package: str, version: str, problem: str) -> None:
        self.package, self.version, self.problem = package, version, problem
        super().__init__(" ".join(f"plugin {package} {version}: {problem}".split()))


class BenchFailed(ArcppError):
    """A measurement that ended without figures, in one line."""


class StagesDisagree(ArcppError):
    """Stages decided something differently that all must decide alike.

    what: what was to be decided. answers: each stage's, in stage order.
    """

    def __init__(self, what: str, answers: tuple[str, ...], right: str) -> None:
        self.what, self.answers = what, answers
        each = ", ".join(f"stage {index} {answer}" for index, answer in enumerate(answers))
        super().__init__(_one_line(f"the stages disagree on {what}: {each}; {right}"))


class NonFinite(ArcppError):
    """Values that are not finite (NaN, infinity) where only numbers can be.

    where: such as "boundary stage0->stage1" or "logits". stage: which found them. step: of the
    engine, or None.
    """

    def __init__(self, where: str, *, stage: int | None = None, step: int | None = None) -> None:
        self.where, self.stage, self.step = where, stage, step
        super().__init__(_one_line(f"values that are not finite in {where}"))


class LinkError(ArcppError):
    """A hop did not happen.

    link: its name. step: the hop's sequence number, or None. peer: process at the other end, or
    None where it is not known.
    """

    def __init__(
        self, message: str, *, link: str, step: int | None = None, peer: int | None = None
    ) -> None:
        self.link, self.step, self.peer = link, step, peer
        super().__init__(message)


class PeerLost(LinkError):
    """The process or thread at the other end of a link is gone."""


class DeadlineExceeded(LinkError):
    """A wait on a link ended at its deadline while the peer was still alive."""


class LinkCorrupt(LinkError):
    """What arrived differs from what was announced (shape, dtype, step or checksum)."""


class StateError(ArcppError):
    """Something is wrong with recurrent state, or with how it was asked for."""


class StateExhausted(StateError):
    """There are not as many slots or snapshots as were asked for; nothing was given.

    what: "state slots" or "state snapshots". needed: how many. available: how many were free, of
    ``capacity``.
    """

    def __init__(self, what: str, needed: int, available: int, capacity: int, right: str) -> None:
        self.what, self.needed, self.available, self.capacity = what, needed, available, capacity
        super().__init__(f"{needed} {what} needed, {available} of {capacity} free: {right}")


class StateCorrupt(StateError):
    """State, or the books of a pool, are not what they must be. problems: each, one line."""

    def __init__(self, problems: tuple[str, ...]) -> None:
        self.problems = problems
        super().__init__(_one_line("recurrent state is not sound: " + "; ".join(problems)))


class SlotMisuse(StateError):
    """A slot or snapshot was used against its rules; nothing was changed.

    owner: whose it is or was. number: which, or None where there is none yet.
    """

    def __init__(self, message: str, *, owner: object, number: int | None = None) -> None:
        self.owner, self.number = owner, number
        super().__init__(_one_line(message))


class DoubleRelease(SlotMisuse):
    """A slot or snapshot was given back twice."""


class UseAfterRelease(SlotMisuse):
    """A slot or snapshot was used that had been given back."""


class ForeignSlot(SlotMisuse):
    """A slot or snapshot of one pool was shown to another."""


def _one_line(text: str) -> str:
    return " ".join(text.split())
