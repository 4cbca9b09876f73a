"""One stage: the platform's own worker (CPU, XPU, CUDA) with a plan, a link and shims around it.

The base class is whatever vLLM chose for the platform; its name arrives in the environment,
because vLLM names worker classes by string and builds them in another process.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from vllm.distributed.parallel_state import get_pp_group
from vllm.logger import init_logger
from vllm.platforms import current_platform
from vllm.utils.import_utils import resolve_obj_by_qualname

from arcpp.errors import ArcppError, DoesNotFit
from arcpp.planner import Plan
from arcpp.report import needs_text
from arcpp.units import format_gib

from . import (
    base_worker,
    budget,
    concurrency,
    device_memory,
    duplicates,
    orphans,
    refusal,
    shims,
    stage_plan,
    transport,
)
from .recovery import progress, records
from .recovery.finite import FiniteCheck
from .recovery.requests import restore
from .state_guard import StateGuard

logger = init_logger("vllm.arcpp.worker")

# What vLLM says when another program, or another server, has the device's memory
# (worker/utils.request_memory, cpu_worker.CPUWorker, 0.32.0).
_NO_MEMORY = re.compile(r"^(Free|Available) memory on (device|node)")

_Base: Any = resolve_obj_by_qualname(base_worker.name())


class ArcppWorker(_Base):
    """Stage of rank ``self.rank``; see the module's docstring."""

    _plan: Plan | None = None
    _link: transport.BoundaryTransport | None = None
    _guard: StateGuard | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        with self._refusing():
            super().__init__(*args, **kwargs)
        self._times: dict[str, float] = {}
        self._finite = FiniteCheck(self.rank)
        self._progress = progress.Mark(self.rank)
        self._progress.note_compilations()

    def init_device(self) -> None:
        """The base's, without warming up a device collective that no stage will use."""
        orphans.watch_parent(lambda: None)
        orphans.leave_if_orphaned()
        shims.keep_to_loopback()
        shims.keep_progress_bars_to_threads()
        if not current_platform.is_cpu():
            device_memory.check_memory_queries()
        lenient = budget.start_with_what_is_free(self)
        with self._refusing(), records.noting(self), shims.no_device_collectives(), lenient:
            super().init_device()

    def load_model(self, **kwargs: Any) -> None:
        """Agree on the partition from memory measured on every stage, then load these layers."""
        with self._refusing():
            self._plan = stage_plan.agree(self)
        self._times["start"] = started = time.monotonic()
        with records.noting(self):
            super().load_model(**kwargs)
        given_back = duplicates.drop(self)
        finite = self._finite if stage_plan.settings_of(self).check_finite else None
        with self._refusing():
            self._link = transport.install(self, finite)
        if finite is not None and get_pp_group().is_last_rank:
            self._finite.watch_logits(self.model_runner.model)
        shims.allocate_intermediate_tensors(self)
        self._times["load"] = time.monotonic()
        logger.info(
            "arcpp: stage %d loaded in %.1f s%s",
            self.rank,
            time.monotonic() - started,
            "".join(f", gave back {role} ({size} bytes)" for role, size in given_back.items()),
        )

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        """Within: what arcpp raises on purpose, and the host's own refusal of a device that has
        too little memory free, end this stage with one line, not a trace."""
        try:
            yield
        except ArcppError as error:
            if isinstance(error, DoesNotFit):
                self._show_needs(error)
            refusal.refuse(str(error))
        except ValueError as error:
            if not _NO_MEMORY.search(str(error)):
                raise
            refusal.refuse(" ".join(str(error).split()))

    def _show_needs(self, error: DoesNotFit) -> None:
        """Every stage finds the same; the first says it before any other ends the start."""
        if self.rank == 0:
            logger.error("arcpp: nothing fits; at the least\n%s", needs_text(error.needs))
        else:
            refusal.await_first(seconds=10)

    def get_kv_cache_spec(self) -> dict[str, Any]:
        """The base's, after a stage without attention took over the others' block sizes."""
        shims.agree_on_block_sizes(self)
        spec: dict[str, Any] = super().get_kv_cache_spec()
        return spec

    def determine_available_memory(self) -> int:
        """Bytes for the KV cache: what the host measures, at most this stage's planned share."""
        measured = int(super().determine_available_memory())
        explicit = self.cache_config.kv_cache_memory_bytes is not None
        return budget.cache_share(self._plan, self.rank, measured, explicit=explicit)

    def limit_sequences(self, most: int) -> None:
        """At most ``most`` requests at once, for all that is built from now on; see concurrency."""
        concurrency.limit(self, most)

    def initialize_from_config(self, kv_cache_config: Any) -> None:
        """The base's; then say what this stage holds."""
        super().initialize_from_config(kv_cache_config)
        self._guard = StateGuard(self, kv_cache_config, stage_plan.settings_of(self))
        shims.agree_on_batch_order(self)
        shims.skip_state_copies_without_state(self)
        weights = shims.model_bytes(self.model_runner.model)
        cache = shims.storage_bytes(shims.cache_tensors(self.model_runner.kv_caches))
        logger.info(
            "arcpp: stage %d on %s holds layers %s: weights %s GiB, KV cache and state %s GiB "
            "in %d blocks",
            self.rank,
            self.device,
            stage_plan.layer_range(self._plan, self.rank),
            format_gib(weights),
            format_gib(cache),
            kv_cache_config.num_blocks,
        )

    def execute_model(self, scheduler_output: Any) -> Any:
        """The base's; a fault in it ends this process, whatever its rank."""
        self._progress.begin()
        with records.leaving(self):
            if self._guard is not None:
                self._guard.before_step(scheduler_output)
            output = super().execute_model(scheduler_output)
            if self._guard is not None:
                self._guard.after_step(scheduler_output, self._finite)
            if not get_pp_group().is_last_rank:
                self._finite.settle()
        self._progress.end()
        return output

    def sample_tokens(self, grammar_output: Any) -> Any:
        """The base's, then a look at what the step flagged; a fault ends this process."""
        self._progress.begin()
        with records.leaving(self):
            output = super().sample_tokens(grammar_output)
            self._finite.settle()
        self._progress.end()
        return output

    def restore_requests(self, requests: list[tuple[Any, list[int]]]) -> int:
        """After a restart: make known what the scheduler takes for known; see recovery.requests."""
        with records.leaving(self):
            return restore(self.model_runner, requests)

    def stage_facts(self) -> dict[str, Any]:
        """What a later start of this stage must keep to, and the bytes it will need."""
        partition, needed = None, 0
        if self._plan is not None:
            partition = str(self._plan.partition)
            needed = self._plan.stages[self.rank].total_bytes
        return {"device": str(self.device), "partition": partition, "bytes": needed}

    def start_times(self) -> dict[str, float]:
        """time.monotonic() at which this process had "start"ed, and had "load"ed its weights."""
        return self._times

    def shutdown(self) -> None:
        """Close the link first: the other end learns of it at once."""
        if self._link is not None:
            self._link.close()
        super().shutdown()
