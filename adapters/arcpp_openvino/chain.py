"""A chain of stages: the model cut between layers, each stage compiled for its device.

What an engine uses of it::

    chain = Chain.from_folder(path, devices=("CPU", "CPU"))
    pool = SlotPool(chain.states, PoolSize(slots=4))     # hybrid models; place 0 is the zero block
    chain.submit(batch, microbatch=0)                    # returns at once
    chain.submit(other, microbatch=1)                    # other stages' turn meanwhile
    logits = chain.collect(0)                            # float32 [rows, vocabulary]

``from_folder(path, devices, partition, options)``: devices are OpenVINO's names, one per stage, and
may repeat. partition: layers per stage; None lets arcpp's planner choose. The folder's tokenizer
is not looked at (``folder.check_tokenizers`` does). ``chain.profile`` (:class:`ChainProfile`) says
what the chain was made for, ``chain.plan`` what was planned (None where nothing was),
``chain.stages`` what was compiled where.

``submit(batch, microbatch)``: starts a :class:`.batch.StepBatch` on the first stage; each stage
starts the next where it ends. Arrays of the batch are copied before it returns. One step per
microbatch at a time; every stage runs steps in the order in which they were submitted. Steps in
flight at once must be of different sequences.

``collect(microbatch)``: waits, and returns the logits of ``batch.logits_rows``, in order. They are
a view of the last stage's output: valid until the next submit of that microbatch; copy what is
kept.

``chain.states``: state tables of all stages as one :class:`arcpp.state.StateTables`, for a
SlotPool; None for dense models. Place 0 is the zero block: a first step may read it, none writes.
``check_integrity()`` reads it back.

Faults: StageFailed carries stage, device and a classified fault; StepNotFinite which rows of the
logits are no numbers. What a failed step's sequences have in KV and state tables is unknown then:
compute them anew. ``restart(stage)`` compiles a stage again, with fresh tables; all sequences must
then be computed anew. ``restart()`` renews all stages.

A chain belongs to one thread at a time. Stages hand over through host tensors, which producer and
consumers are both bound to: nothing is copied in between on a processor.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from arcpp.errors import StateCorrupt
from arcpp.hooks import Hooks, hooks_for
from arcpp.partition import Partition, check_partition
from arcpp.plan import Plan
from arcpp.settings import read_settings
from arcpp.state import ZERO_PLACE

from .batch import StepBatch
from .cut import cut
from .devices import check_devices
from .errors import StepNotFinite
from .flight import Flight
from .folder import open_folder
from .inputs import InputSpec, StepInputs
from .names import HIDDEN, LOGITS
from .options import ChainOptions
from .paged import paged_model
from .planning import plan_chain
from .profile import chain_profile, layer_kind
from .room import check_room
from .stage import CompiledStage
from .tables import ChainStates


class Chain:
    """See the module's docstring."""

    def __init__(
        self,
        core: Any,
        stages: Sequence[CompiledStage],
        kinds: tuple[str, ...],
        options: ChainOptions,
        plan: Plan | None,
    ) -> None:
        """Allocates tables and binds everything.

        Raises DoesNotFit, StageFailed, BadInput, StateCorrupt.
        """
        self.core, self.stages, self.options, self.plan = core, tuple(stages), options, plan
        self.profile = chain_profile(self.stages, kinds, options, plan)
        self.states: ChainStates | None = None
        self._boundaries: list[dict[str, Any]] = []
        self._flights: list[Flight] = []
        self._left: list[object] = []
        self._inputs = [self._step_inputs() for _ in range(options.microbatches)]
        blocks = [self.profile.kv_blocks * self._factor(stage) for stage in self.stages]
        check_room(self.stages, blocks, self.profile.state_blocks)
        for stage in self.stages:
            self._allocate(stage)
        self._connect()

    @classmethod
    def from_folder(
        cls,
        path: str | Path,
        devices: Sequence[str] = ("CPU",),
        partition: Sequence[int] | None = None,
        options: ChainOptions = ChainOptions(),  # noqa: B008 (frozen)
        hooks: Hooks | None = None,
    ) -> Self:
        """Plan, cut, compile and preallocate. hooks: None for those that ``ARCPP_*`` set.

        Raises BadModel, BadInput, DoesNotFit, each one line; StageFailed where OpenVINO does not
        compile or allocate what should be.

        """
        core = ov.Core()
        names = check_devices(core, devices)
        folder = open_folder(path)
        counts = None if partition is None else tuple(partition)
        plan = None
        if counts is None or options.kv_blocks is None:
            hooks = hooks or hooks_for(read_settings())
            plan = plan_chain(hooks, folder, names, counts, options)
            hooks.plan_made(plan, 0)
            counts = plan.partition.counts
        paged = paged_model(core, folder)
        assert counts is not None
        chosen = Partition(counts)
        check_partition(chosen, len(paged.ends), len(names), "partition")
        pieces = cut(paged, chosen)
        kinds = tuple(layer_kind(tables) for tables in paged.tables_by_layer())
        stages = [
            CompiledStage(core, piece, device, options)
            for piece, device in zip(pieces, names, strict=True)
        ]
        return cls(core, stages, kinds, options, plan)

    def submit(self, batch: StepBatch, microbatch: int = 0) -> None:
        """Start a step. Raises ValueError where the microbatch has one in flight or lacks state
        blocks, StageFailed where the first stage does not start."""
        flight = self._flights[microbatch]
        if flight.busy:
            raise ValueError(f"microbatch {microbatch} has a step in flight: collect it first")
        if self.profile.hybrid and batch.state_blocks is None:
            raise ValueError("a hybrid model's batch needs state blocks")
        self._inputs[microbatch].fill(batch)
        flight.start()

    def collect(self, microbatch: int = 0, timeout: float | None = None) -> NDArray[np.float32]:
        """Logits [rows, vocabulary] of the step in flight. timeout: seconds.

        Raises StageFailed, of kind StageStalled at the timeout (the step stays in flight);
        StepNotFinite, which holds the logits of the good rows; ValueError.
        """
        flight = self._flights[microbatch]
        if not flight.busy:
            raise ValueError(f"microbatch {microbatch} has no step in flight")
        flight.wait(timeout)
        found: NDArray[np.float32] = self._boundaries[microbatch][LOGITS].data
        logits = found.reshape(-1, self.profile.vocab_size)
        if self.options.check_finite and len(logits):
            finite = np.isfinite(logits.max(axis=1))
            if not finite.all():
                rows = tuple(np.flatnonzero(~finite).tolist())
                raise StepNotFinite(rows, logits, self._first_not_finite(microbatch))
        return logits

    def run(self, batch: StepBatch, microbatch: int = 0) -> NDArray[np.float32]:
        """submit() and collect()."""
        self.submit(batch, microbatch)
        return self.collect(microbatch)

    def check_integrity(self) -> None:
        """Raises StateCorrupt where the zero block is not zero. No step may be in flight."""
        wrong = [
            f"the zero block of stage {stage.index} on {stage.device} is not zero"
            for stage in self.stages
            if stage.state is not None and not stage.state.are_zero([ZERO_PLACE])
        ]
        if wrong:
            raise StateCorrupt(tuple(wrong))

    def restart(self, stage: int | None = None, timeout: float | None = None) -> None:
        """Compile a stage (None: all) again, with fresh tables. Raises StageFailed.

        Steps in flight are given up, after a wait of ``timeout`` seconds at most for each. One that
        still runs then is left to itself with all that it uses, and every stage is renewed.
        """
        ended = self.abandon(timeout)
        for one in (self.stages[stage],) if ended and stage is not None else self.stages:
            one.compile()
            self._allocate(one)
        self._connect()

    def abandon(self, timeout: float | None = None) -> bool:
        """Wait for steps in flight and forget them, whatever became of them.

        False where one still runs after ``timeout`` seconds: only restart() helps then.
        """
        ended = True
        for number, flight in enumerate(self._flights):
            if not flight.abandon(timeout):
                ended = False
                # Kept: letting go of a request that runs would wait for it.
                self._left.append((flight, self._inputs[number], self._boundaries[number]))
                self._inputs[number] = self._step_inputs()
                self._boundaries[number] = self._made_boundaries()
        return ended

    def close(self) -> None:
        """Wait for steps in flight, and let go of requests, tables and compiled stages."""
        self.abandon()
        self._flights, self._boundaries, self._inputs = [], [], []
        self.states = None
        for stage in self.stages:
            stage.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _first_not_finite(self, microbatch: int) -> int:
        """The first stage whose output of the last step holds what is no number."""
        for stage in self.stages[:-1]:
            boundary = self._boundaries[microbatch][f"{HIDDEN}{stage.high}"]
            if not np.isfinite(boundary.data).all():
                return stage.index
        return len(self.stages) - 1

    def _allocate(self, stage: CompiledStage) -> None:
        factor = self._factor(stage)
        stage.allocate(self.profile.kv_blocks * factor, self.profile.state_blocks)
        if stage.state is not None:
            stage.state.zero([ZERO_PLACE])
            if not stage.state.are_zero([ZERO_PLACE]):
                where = f"stage {stage.index} on {stage.device}"
                raise StateCorrupt((f"the zero block of {where} does not become zero",))

    def _factor(self, stage: CompiledStage) -> int:
        """Blocks of the stage's device in one of the chain's."""
        return self.profile.block_size // (stage.block_tokens or self.profile.block_size)

    def _step_inputs(self) -> StepInputs:
        specs: dict[str, InputSpec] = {}
        for stage in self.stages:
            specs.update(stage.step_inputs())
        return StepInputs(
            specs,
            {self._factor(stage) for stage in self.stages},
            tokens=self.options.max_batch_tokens,
            sequences=self.profile.max_sequences,
        )

    def _connect(self) -> None:
        """Bind inputs and boundaries of every microbatch; made once, kept over restarts."""
        parts = [stage.state for stage in self.stages if stage.state is not None]
        self.states = ChainStates(parts) if parts else None
        for number in range(self.options.microbatches):
            if len(self._boundaries) == number:
                self._boundaries.append(self._made_boundaries())
            for stage in self.stages:
                factor = self._factor(stage)
                tensors = {
                    name: self._inputs[number].tensor(name, factor) for name in stage.step_inputs()
                }
                stage.bind(number, {**tensors, **self._boundaries[number]})
        self._flights = [Flight(self.stages, n) for n in range(self.options.microbatches)]

    def _made_boundaries(self) -> dict[str, Any]:
        """Host tensors of everything that stages give, with room for the largest step."""
        made = {}
        for stage in self.stages:
            for name, port in stage.outputs.items():
                room = self.profile.max_sequences if name == LOGITS else 1
                if name.startswith(HIDDEN):
                    room = self.options.max_batch_tokens
                sizes = stage.piece.gives[name]
                shape = [room if size.is_dynamic else size.get_length() for size in sizes]
                made[name] = ov.Tensor(port.get_element_type(), ov.Shape(shape))
        return made
