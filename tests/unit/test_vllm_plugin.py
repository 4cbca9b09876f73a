"""The plugin in vLLMs of several shapes: it helps who asks for arcpp and nobody else notices."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support import fake_vllm

from arcpp.errors import BadInput

pytest.importorskip("torch")

V2 = "VLLM_USE_V2_MODEL_RUNNER"
PARTITION = "VLLM_PP_LAYER_PARTITION"
OURS = ("arcpp", "arcpp_vllm.ArcppExecutor", "arcpp_vllm.executor.ArcppExecutor")


class OtherExecutor:
    """Somebody else's executor class."""


OTHERS = ("mp", "uni", "ray", "external_launcher", "their.Executor", None, OtherExecutor, 3)


@pytest.fixture(autouse=True)
def _own_world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whatever the plugin sets for the processes of an engine ends with the test."""
    for name in (V2, PARTITION, "ARCPP_VLLM_RUN_FOLDER", "VLLM_RPC_BASE_PATH"):
        monkeypatch.setenv(name, "")  # so that it is put back whatever happens to it
        monkeypatch.delenv(name)
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)


@pytest.fixture
def vllm(tmp_path: Path) -> Iterator[SimpleNamespace]:
    with fake_vllm.installed(tmp_path / "site") as fake:
        fake.plugin.register()
        yield fake


def _refusal(fake: SimpleNamespace, **arguments: Any) -> str:
    """The one line a user gets from vLLM's argument handling."""
    engine_args = fake.EngineArgs("arcpp", **arguments)
    with pytest.raises(ValueError, match=r"^arcpp: ") as caught:
        engine_args.create_engine_config()
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


def test_without_vllm_nothing_happens(tmp_path: Path) -> None:
    with fake_vllm.installed(tmp_path / "site") as fake:
        for name in ("vllm.engine.arg_utils", "vllm.v1.executor.abstract"):
            del sys.modules[name]
        fake.plugin.register()
        assert "vllm.engine.arg_utils" not in sys.modules


def test_registering_again_changes_nothing(vllm: SimpleNamespace) -> None:
    wrapped = (vllm.EngineArgs.create_engine_config, vllm.Executor.get_class)
    for _ in range(3):
        vllm.plugin.register()
    assert (vllm.EngineArgs.create_engine_config, vllm.Executor.get_class) == wrapped
    engine_args = vllm.EngineArgs("mp")
    engine_args.create_engine_config()
    assert len(engine_args.seen) == 1


def test_wrapping_keeps_name_and_documentation(tmp_path: Path) -> None:
    with fake_vllm.installed(tmp_path / "site") as fake:
        original = fake.EngineArgs.create_engine_config
        fake.plugin.register()
        assert fake.EngineArgs.create_engine_config is not original
        assert fake.EngineArgs.create_engine_config.__wrapped__ is original
        assert fake.EngineArgs.create_engine_config.__name__ == "create_engine_config"


@pytest.mark.parametrize("backend", OTHERS, ids=str)
def test_other_executors_go_through_untouched(vllm: SimpleNamespace, backend: Any) -> None:
    environment = dict(os.environ)
    engine_args = vllm.EngineArgs(backend, tensor_parallel_size=4, async_scheduling=True)
    config = engine_args.create_engine_config("context", headless=True)
    assert config.parallel_config.distributed_executor_backend is backend
    assert engine_args.seen == [{"usage_context": "context", "headless": True}]
    assert (engine_args.tensor_parallel_size, engine_args.async_scheduling) == (4, True)
    assert vllm.Executor.get_class(config) == ("stock", backend)
    assert vllm.Executor.get_class(vllm_config=config) == ("stock", backend)
    assert dict(os.environ) == environment
    assert "arcpp_vllm.executor" not in sys.modules
    assert list(Path(tempfile.gettempdir()).iterdir()) == []


def test_an_error_of_vllm_is_passed_on_as_it_is(tmp_path: Path) -> None:
    class Raising(fake_vllm.EngineArgs):
        def create_engine_config(self, usage_context: Any = None) -> Any:
            raise TypeError("vLLM's own")

    with fake_vllm.installed(tmp_path / "site", EngineArgs=Raising) as fake:
        fake.plugin.register()
        for backend in ("mp", "arcpp"):
            with pytest.raises(TypeError, match=r"^vLLM's own$"):
                Raising(backend).create_engine_config()


@pytest.mark.parametrize("name", OURS)
def test_the_name_becomes_the_class_before_vllm_looks(vllm: SimpleNamespace, name: str) -> None:
    engine_args = vllm.EngineArgs(name)
    config = engine_args.create_engine_config("context")
    executor = sys.modules["arcpp_vllm.executor"].ArcppExecutor
    assert config.parallel_config.distributed_executor_backend is executor
    assert engine_args.seen == [{"usage_context": "context", "headless": False}]
    assert config.scheduler_config.async_scheduling is False
    assert os.environ[V2] == "0"


@pytest.mark.parametrize("name", OURS)
def test_configurations_built_by_hand_find_the_class(vllm: SimpleNamespace, name: str) -> None:
    found = vllm.Executor.get_class(fake_vllm.config(name))
    assert found is sys.modules["arcpp_vllm.executor"].ArcppExecutor
    assert issubclass(found, sys.modules["vllm.v1.executor.multiproc_executor"].MultiprocExecutor)
    assert not found.supports_async_scheduling()


def test_the_class_itself_may_be_given_again(vllm: SimpleNamespace) -> None:
    executor = vllm.plugin.resolve("arcpp")
    config = vllm.EngineArgs(executor).create_engine_config()
    assert config.parallel_config.distributed_executor_backend is executor
    assert vllm.plugin.resolve(executor) is executor


@pytest.mark.parametrize("value", ["0", "false", "False"])
def test_the_v1_runner_may_be_asked_for(
    vllm: SimpleNamespace, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(V2, value)
    vllm.EngineArgs("arcpp").create_engine_config()
    assert os.environ[V2] == value


@pytest.mark.parametrize("value", ["1", "true", "True"])
def test_the_v2_runner_is_refused(
    vllm: SimpleNamespace, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(V2, value)
    assert f"{V2}: '{value}' is not supported" in _refusal(vllm)


def test_tensor_parallelism_is_refused(vllm: SimpleNamespace) -> None:
    message = _refusal(vllm, tensor_parallel_size=2)
    assert message.startswith("arcpp: --tensor-parallel-size: 2 is not supported")
    assert "--pipeline-parallel-size" in message


def test_async_scheduling_is_refused(vllm: SimpleNamespace) -> None:
    assert "--async-scheduling: True is not supported" in _refusal(vllm, async_scheduling=True)


@pytest.mark.parametrize(
    ("given", "wrong"),
    [("4,4,4", "3 stages"), ("4,5", "9 layers"), ("4;4", "layers per stage"), ("", "layers per")],
)
def test_a_partition_that_cannot_be_is_refused(
    vllm: SimpleNamespace, given: str, wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PARTITION, given)
    message = _refusal(vllm)
    assert PARTITION in message
    assert wrong in message


def test_more_stages_than_layers_are_refused(vllm: SimpleNamespace) -> None:
    message = _refusal(vllm, pipeline_parallel_size=9)
    assert "--pipeline-parallel-size: 9 is more stages than the model has layers (8)" in message


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"tensor_parallel_size": 2}, "--tensor-parallel-size"),
        ({"nnodes": 2}, "--nnodes"),
        ({"data_parallel_size": 2}, "--data-parallel-size"),
        ({"decode_context_parallel_size": 2}, "--decode-context-parallel-size"),
        ({}, "V2 model runner"),
    ],
)
def test_configurations_built_by_hand_are_refused_too(
    vllm: SimpleNamespace, change: dict[str, int], what: str
) -> None:
    vllm.plugin.resolve("arcpp")
    scope = sys.modules["arcpp_vllm.scope"]
    scope.check_config(fake_vllm.config("arcpp"))
    config = fake_vllm.config("arcpp", **change)
    config.use_v2_model_runner = not change
    with pytest.raises(BadInput) as caught:
        scope.check_config(config)
    assert caught.value.what == what
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "value", "what"),
    [
        ("kv_transfer_config", SimpleNamespace(kv_connector="Nixl"), "--kv-transfer-config"),
        ("speculative_config", {"method": "mtp"}, "--speculative-config"),
        ("speculative_config", SimpleNamespace(method="mtp"), "--speculative-config"),
    ],
)
def test_features_that_do_not_cross_stages_are_refused_by_name(
    vllm: SimpleNamespace, name: str, value: object, what: str
) -> None:
    vllm.plugin.resolve("arcpp")
    scope = sys.modules["arcpp_vllm.scope"]
    config = fake_vllm.config("arcpp")
    config.parallel_config.pipeline_parallel_size = 2
    setattr(config, name, value)
    with pytest.raises(BadInput) as caught:
        scope.check_config(config)
    assert caught.value.what == what
    assert caught.value.value in ("Nixl", "mtp")


def test_speculation_within_one_stage_is_the_hosts_business(vllm: SimpleNamespace) -> None:
    vllm.plugin.resolve("arcpp")
    config = fake_vllm.config("arcpp")
    config.parallel_config.pipeline_parallel_size = 1
    config.speculative_config = {"method": "mtp"}
    sys.modules["arcpp_vllm.scope"].check_config(config)


@pytest.mark.parametrize("draft", [{"method": "mtp"}, SimpleNamespace(method="mtp")])
@pytest.mark.parametrize(
    ("hybrid", "caching", "refused"),
    [(True, True, True), (True, False, False), (False, True, False)],
)
def test_cached_prefixes_with_drafts_are_refused_where_there_is_recurrent_state(
    vllm: SimpleNamespace, draft: object, hybrid: bool, caching: bool, refused: bool
) -> None:
    config = fake_vllm.config("arcpp", pipeline_parallel_size=1)
    config.model_config.is_hybrid = hybrid
    config.cache_config = SimpleNamespace(enable_prefix_caching=caching)
    config.speculative_config = draft
    vllm.EngineArgs.create_engine_config = lambda self, usage_context=None, headless=False: config
    vllm.plugin.register()
    args = vllm.EngineArgs("arcpp", pipeline_parallel_size=1)
    if not refused:
        assert args.create_engine_config() is config
        return
    with pytest.raises(ValueError, match="--no-enable-prefix-caching") as caught:
        args.create_engine_config()
    assert str(caught.value).startswith("arcpp: --speculative-config: 'mtp' with prefix caching")
    with pytest.raises(BadInput):
        sys.modules["arcpp_vllm.scope"].check_config(config)


@pytest.mark.parametrize(
    ("stages", "agreed"),
    [
        ([["a", "b"], ["a", "b"]], ["a", "b"]),
        ([["b"], ["a", "b", "c"]], ["b"]),
        ([["c", "b"], ["a", "b", "c"], ["b", "c"]], ["c", "b"]),
    ],
)
def test_stages_say_the_layouts_all_of_them_can_use(
    vllm: SimpleNamespace, stages: list[list[str]], agreed: list[str]
) -> None:
    executor = vllm.plugin.resolve("arcpp")
    base = executor.__mro__[1]
    base.get_supported_kv_cache_layouts = lambda self: stages
    assert executor().get_supported_kv_cache_layouts() == [agreed] * len(stages)


def test_stages_that_share_no_layout_are_left_to_vllm(vllm: SimpleNamespace) -> None:
    executor = vllm.plugin.resolve("arcpp")
    executor.__mro__[1].get_supported_kv_cache_layouts = lambda self: [["a"], ["b"]]
    assert executor().get_supported_kv_cache_layouts() == [["a"], ["b"]]


def test_a_model_nobody_may_read_is_named(
    vllm: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vllm.plugin.resolve("arcpp")
    check = sys.modules["arcpp_vllm.scope"]._check_model
    (tmp_path / "config.json").write_text("{}")
    check(str(tmp_path))
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may read everything
    with pytest.raises(BadInput) as caught:
        check(str(tmp_path))
    assert "may not be read" in str(caught.value)
    assert str(tmp_path / "config.json") in str(caught.value)
    check("org/name-on-a-hub")
