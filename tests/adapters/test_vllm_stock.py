"""arcpp installed and not asked for changes nothing in vLLM; asked for, only what it says.

Each case is a process of its own that prints what vLLM made of its arguments.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.support.vllm_server import HYBRID_MODEL, ROOT

pytestmark = pytest.mark.vllm

_LOOK = """
import json, os, sys
hook = sys.excepthook
before = dict(os.environ)
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.executor.abstract import Executor
arguments = json.loads(sys.argv[1])
config = EngineArgs(enforce_eager=True, max_model_len=512, **arguments).create_engine_config()
executor = Executor.get_class(config)
print(json.dumps({
    "executor": f"{executor.__module__}.{executor.__qualname__}",
    "worker": config.parallel_config.worker_cls,
    "async": config.scheduler_config.async_scheduling,
    "environment": sorted(k for k in os.environ if os.environ[k] != before.get(k)),
    "excepthook": sys.excepthook is hook,
    "ours": sorted(m for m in sys.modules if m.split(".")[0] in ("arcpp", "arcpp_vllm")),
}))
"""


def _look(arguments: dict[str, Any], plugins: str | None = None) -> dict[str, Any]:
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    if plugins is not None:
        environment["VLLM_PLUGINS"] = plugins
    done = subprocess.run(
        [sys.executable, "-c", _LOOK, json.dumps({"model": str(HYBRID_MODEL)} | arguments)],
        capture_output=True,
        text=True,
        env=environment,
        cwd=ROOT,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


@pytest.mark.parametrize("backend", ["mp", "uni"])
def test_other_executors_are_as_without_arcpp(backend: str) -> None:
    arguments = {"distributed_executor_backend": backend}
    without = _look(arguments, plugins="none")
    beside = _look(arguments)
    assert not without.pop("ours")
    # Loaded to wrap two functions, and nothing beyond that.
    assert "arcpp_vllm.executor" not in beside.pop("ours")
    assert beside == without


def test_arcpp_takes_its_executor_and_leaves_the_worker_to_the_platform() -> None:
    found = _look({"distributed_executor_backend": "arcpp", "pipeline_parallel_size": 2})
    assert found["executor"] == "arcpp_vllm.executor.ArcppExecutor"
    assert found["worker"] == "vllm.v1.worker.cpu_worker.CPUWorker"
    assert found["async"] is False
