"""The executor vLLM runs: its own multiprocessing executor, with stages of our worker.

Nothing of ``MultiprocExecutor`` is copied. With tensor parallelism refused, rank = stage.
"""

from __future__ import annotations

import contextlib
import signal
from typing import Any

from vllm.v1.executor.multiproc_executor import MultiprocExecutor

from arcpp.settings import from_additional_config

from . import base_worker, compat, concurrency, orphans, refusal, run_folder, scope, shims
from .recovery import engine, standby
from .recovery.stages import STEP, Stages

_WORKER = "arcpp_vllm.worker.ArcppWorker"


class ArcppExecutor(MultiprocExecutor):
    """One worker process per stage; the layer partition is planned in the workers."""

    supports_pp = True

    stages: Stages

    def _init_executor(self) -> None:
        refusal.clear()
        _watch_parent()
        try:
            compat.require(compat.EXECUTION)
            scope.check_config(self.vllm_config)
            self._supervise()
            with self.stages.starting_first():
                self._start_stages()
        except Exception as error:
            refusal.pass_on(error)

    def _supervise(self) -> None:
        """What notices a lost stage, and the engine's step that goes on after one."""
        settings = from_additional_config(self.vllm_config.additional_config)
        self.stages = Stages(self, settings)
        self.stages.forget()
        self.shutting_down = False
        self._standby = settings.standby
        if self.stages.survives:
            engine.install()

    def start_worker_monitor(self, inline: bool = False) -> None:  # noqa: ARG002 (vLLM's name)
        """In the place of the base's, which ends the engine when a worker does."""
        if self.stages.survives:
            self.stages.watch.over(self.workers)
        else:
            super().start_worker_monitor()

    def collective_rpc(  # type: ignore[override]
        self,
        method: Any,
        timeout: float | None = None,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        non_block: bool = False,
        **more: Any,
    ) -> Any:
        """The base's, with a deadline always, and refused at once when a stage is lost.

        Raises StageLost.
        """
        self.stages.check()
        if method not in STEP:
            timeout = self.stages.timeout_of(timeout)
            self.stages.remember(method, args)
            return super().collective_rpc(
                method, timeout, args, kwargs, non_block=non_block, **more
            )
        tokens = args[0].total_num_scheduled_tokens if method == "execute_model" else 0
        if method == "execute_model":
            self.stages.watch.begin(tokens)
        future = super().collective_rpc(
            method, self.stages.watch.limit, args, kwargs, non_block=True, **more
        )
        if method == "sample_tokens" or not tokens:
            future.add_done_callback(self.stages.watch.done)
        else:
            future.add_done_callback(self.stages.watch.done_unless_sampled)
        return future if non_block else future.result()

    def _start_stages(self) -> None:
        if self.parallel_config.worker_cls != _WORKER:
            base_worker.remember(self.parallel_config.worker_cls)
            self.parallel_config.worker_cls = _WORKER
        stages = self.parallel_config.world_size
        with (
            shims.cpu_stages_share_cores(stages),
            run_folder.temporary_files_here(),
            standby.forking(self.vllm_config) if self._standby else contextlib.nullcontext(),
        ):
            super()._init_executor()

    def shutdown(self) -> None:
        """The base's; and if nobody else is left to do it, remove this server's sockets."""
        super().shutdown()
        if orphans.parent_gone():
            run_folder.remove()

    def get_supported_kv_cache_layouts(self) -> list[list[str]]:
        """Layouts every stage can use, said alike by all of them.

        vLLM requires all workers to report the same list (0.32: "Workers disagree on supported
        KV cache layouts"), but a stage without any attention layer has no backend that asks for
        one and reports them all. Can go when vLLM intersects the lists itself.
        """
        per_stage: list[list[str]] = super().get_supported_kv_cache_layouts()
        common = set(per_stage[0]).intersection(*per_stage[1:])
        strictest = min(per_stage, key=len)
        agreed = [layout for layout in strictest if layout in common]
        return [agreed] * len(per_stage) if agreed else per_stage

    def initialize_from_config(self, kv_cache_configs: list[Any]) -> None:
        """The base's, after ``max_num_seqs`` came down to what the caches hold state for."""
        most = concurrency.bound(self.vllm_config, kv_cache_configs)
        if most is not None and most < self.scheduler_config.max_num_seqs:
            concurrency.limit(self, most)
            self.collective_rpc("limit_sequences", args=(most,))
        super().initialize_from_config(kv_cache_configs)
        self.stages.pin(self.collective_rpc("stage_facts"))

    @classmethod
    def supports_async_scheduling(cls) -> bool:
        """False: with several stages, text was reported corrupted on the V1 runner."""
        return False


def _watch_parent() -> None:
    orphans.watch_parent(run_folder.remove, signum=signal.SIGTERM)


# A spawned engine or worker imports this module while it unpickles its configuration, before it
# waits minutes for a handshake with a process that may be dead by then. A forked one starts to
# watch in _init_executor or init_device.
_watch_parent()
