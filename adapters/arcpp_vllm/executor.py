"""The executor vLLM runs: its own multiprocessing executor, with stages of our worker.

Nothing of ``MultiprocExecutor`` is copied. With tensor parallelism refused, rank = stage.
"""

from __future__ import annotations

import signal

from vllm.v1.executor.multiproc_executor import MultiprocExecutor

from . import base_worker, compat, orphans, refusal, run_folder, scope, shims

_WORKER = "arcpp_vllm.worker.ArcppWorker"


class ArcppExecutor(MultiprocExecutor):
    """One worker process per stage; the layer partition is planned in the workers."""

    supports_pp = True

    def _init_executor(self) -> None:
        refusal.clear()
        _watch_parent()
        try:
            compat.require(compat.EXECUTION)
            scope.check_config(self.vllm_config)
            self._start_stages()
        except Exception as error:
            refusal.pass_on(error)

    def _start_stages(self) -> None:
        if self.parallel_config.worker_cls != _WORKER:
            base_worker.remember(self.parallel_config.worker_cls)
            self.parallel_config.worker_cls = _WORKER
        stages = self.parallel_config.world_size
        with shims.cpu_stages_share_cores(stages), run_folder.temporary_files_here():
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
