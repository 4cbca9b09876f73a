"""A vLLM that lacks something: one clear line for who asked for arcpp, nothing for others."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support import fake_vllm

from arcpp.errors import HostMismatch
from arcpp_vllm import compat as real_compat

pytest.importorskip("torch")

INTERNALS = {i.where: i for i in real_compat.REGISTRATION + real_compat.EXECUTION}
EXECUTION = [internal.where for internal in real_compat.EXECUTION]
WITH_PARAMETERS = [where for where, internal in INTERNALS.items() if internal.parameters]


@pytest.fixture(autouse=True)
def _own_world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("VLLM_USE_V2_MODEL_RUNNER", "ARCPP_VLLM_RUN_FOLDER", "VLLM_RPC_BASE_PATH"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)


def _others_still_work(fake: SimpleNamespace) -> None:
    for backend in ("mp", "uni", None):
        if hasattr(fake.EngineArgs, "create_engine_config"):
            config = fake.EngineArgs(backend).create_engine_config()
            assert config.parallel_config.distributed_executor_backend is backend
        if hasattr(fake.Executor, "get_class"):
            assert fake.Executor.get_class(fake_vllm.config(backend)) == ("stock", backend)


def _check_line(line: str, what: str) -> None:
    assert len(line.splitlines()) == 1
    for part in ("vLLM 0.99.1+xpu", what, real_compat.SUPPORTED):
        assert part in line


@pytest.mark.parametrize("where", EXECUTION)
def test_what_is_gone_is_named_to_who_asks_for_arcpp(tmp_path: Path, where: str) -> None:
    with fake_vllm.installed(tmp_path / "s", "0.99.1+xpu", without=[where]) as fake:
        fake.plugin.register()
        _others_still_work(fake)
        with pytest.raises(ValueError, match=r"^arcpp: ") as caught:
            fake.EngineArgs("arcpp").create_engine_config()
        _check_line(str(caught.value), f"{where.partition(':')[2]} is gone")
        with pytest.raises(HostMismatch) as mismatch:
            fake.Executor.get_class(fake_vllm.config("arcpp"))
        assert mismatch.value.missing == (f"{where.partition(':')[2]} is gone",)


@pytest.mark.parametrize("module", sorted({where.partition(":")[0] for where in EXECUTION}))
def test_a_module_that_is_gone_is_named(tmp_path: Path, module: str) -> None:
    with fake_vllm.installed(tmp_path / "s", "0.99.1+xpu", without=[module]) as fake:
        fake.plugin.register()
        _others_still_work(fake)
        with pytest.raises(ValueError, match=r"^arcpp: ") as caught:
            fake.EngineArgs("arcpp").create_engine_config()
        for where in EXECUTION:
            if where.startswith(f"{module}:"):
                _check_line(str(caught.value), f"{where.partition(':')[2]} is gone")


@pytest.mark.parametrize(
    ("where", "kind"),
    [
        ("vllm.engine.arg_utils:EngineArgs.create_engine_config", "EngineArgs"),
        ("vllm.v1.executor.abstract:Executor.get_class", "Executor"),
    ],
)
def test_one_way_in_is_enough_to_say_that_the_other_is_gone(
    tmp_path: Path, where: str, kind: str
) -> None:
    changed = {kind: type(kind, (), {})}
    with fake_vllm.installed(tmp_path / "s", "0.99.1+xpu", **changed) as fake:
        fake_vllm.put("vllm.engine.arg_utils:EngineArgs", fake.EngineArgs)
        if fake_vllm.exists(where):
            fake_vllm.remove(where)
        fake.plugin.register()
        if kind == "Executor":
            _others_still_work(fake)
            with pytest.raises(ValueError, match=r"^arcpp: ") as caught:
                fake.EngineArgs("arcpp").create_engine_config()
            line = str(caught.value)
        else:
            with pytest.raises(HostMismatch) as mismatch:
                fake.Executor.get_class(fake_vllm.config("arcpp"))
            line = str(mismatch.value)
        _check_line(line, f"{where.partition(':')[2]} is gone")


@pytest.mark.parametrize("where", WITH_PARAMETERS)
def test_changed_parameters_are_named(tmp_path: Path, where: str) -> None:
    wanted = INTERNALS[where].parameters
    with fake_vllm.installed(tmp_path / "s", "0.99.1+xpu") as fake:
        fake_vllm.put(where, lambda self, renamed=None: None)
        with pytest.raises(HostMismatch) as caught:
            fake.plugin.resolve("arcpp")
        path = where.partition(":")[2]
        assert caught.value.missing == (f"{path} no longer takes {', '.join(wanted)}",)
        _check_line(str(caught.value), path)
        assert fake.plugin.resolve("mp") == "mp"


def test_everything_missing_is_one_line(tmp_path: Path) -> None:
    with fake_vllm.installed(tmp_path / "s", "0.99.1+xpu", without=EXECUTION) as fake:
        with pytest.raises(HostMismatch) as caught:
            fake.plugin.resolve("arcpp")
        assert len(caught.value.missing) == len(EXECUTION)
        _check_line(str(caught.value), "is gone")


def test_any_keyword_is_every_keyword(tmp_path: Path) -> None:
    """A wrapper of somebody else around an internal is no reason to refuse."""
    with fake_vllm.installed(tmp_path / "s") as fake:
        for where in WITH_PARAMETERS:
            fake_vllm.put(where, lambda *args, **kwargs: None)
        assert fake.compat.missing(tuple(INTERNALS.values())) == ()


def test_a_vllm_that_has_it_all_is_taken_whatever_its_version(tmp_path: Path) -> None:
    with fake_vllm.installed(tmp_path / "s", "7.0.0.dev1+g123") as fake:
        assert fake.compat.missing(tuple(INTERNALS.values())) == ()
        assert fake.compat.vllm_version() == "7.0.0.dev1+g123"
        fake.plugin.resolve("arcpp")


def test_every_internal_says_why() -> None:
    for where, internal in INTERNALS.items():
        assert ":" in where
        assert internal.why
    assert len(INTERNALS) == len(real_compat.REGISTRATION) + len(real_compat.EXECUTION)


def test_a_get_class_with_another_parameter_works_for_others(tmp_path: Path) -> None:
    class Executor:
        @staticmethod
        def get_class(vllm_config: Any, role: str = "decode") -> Any:
            return (role, vllm_config.parallel_config.distributed_executor_backend)

    with fake_vllm.installed(tmp_path / "s", "0.99.1+xpu", Executor=Executor) as fake:
        fake.plugin.register()
        assert Executor.get_class(fake_vllm.config("mp"), "prefill") == ("prefill", "mp")
        assert Executor.get_class(fake_vllm.config("mp"), role="x") == ("x", "mp")


def test_a_get_class_with_another_configuration_works_for_others(tmp_path: Path) -> None:
    class Executor:
        @staticmethod
        def get_class(vllm_config: Any) -> Any:
            return ("stock", vllm_config.executor.backend)

    with fake_vllm.installed(tmp_path / "s", "0.99.1+xpu", Executor=Executor) as fake:
        fake.plugin.register()
        future = SimpleNamespace(executor=SimpleNamespace(backend="mp"))
        assert Executor.get_class(future) == ("stock", "mp")


@pytest.mark.parametrize(
    "gone", ["tensor_parallel_size", "pipeline_parallel_size", "async_scheduling"]
)
def test_an_argument_that_is_gone_is_one_line(tmp_path: Path, gone: str) -> None:
    class EngineArgs:
        def __init__(self) -> None:
            self.distributed_executor_backend = "arcpp"
            self.tensor_parallel_size, self.async_scheduling = 1, None
            self.pipeline_parallel_size = 2
            delattr(self, gone)

        def create_engine_config(self, usage_context: Any = None) -> Any:
            return fake_vllm.config(self.distributed_executor_backend)

    with fake_vllm.installed(tmp_path / "s", "0.99.1+xpu", EngineArgs=EngineArgs) as fake:
        fake.plugin.register()
        with pytest.raises(ValueError, match=gone):
            EngineArgs().create_engine_config()


def test_an_internal_that_cannot_be_imported_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = "vllm.v1.worker.gpu_worker"
    with fake_vllm.installed(tmp_path / "s", "0.99.1+xpu", without=[module]) as fake:
        broken = tmp_path / "broken" / "gpu_worker.py"
        broken.parent.mkdir()
        broken.write_text("raise OSError('libsycl.so.8: cannot open shared object file')\n")
        monkeypatch.setattr(sys.modules["vllm.v1.worker"], "__path__", [str(broken.parent)])
        with pytest.raises(HostMismatch, match=r"Worker\.load_model"):
            fake.plugin.resolve("arcpp")
