"""A model's folder is found, or one line says why not."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support import fake_vllm

from arcpp.errors import BadModel


@pytest.fixture
def model_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module, over a hub that has "org/model" once vLLM's loader has brought it."""
    hub: dict[str, Path] = {}

    def download_model(model_config: Any) -> None:
        if model_config.model != "org/model":
            raise OSError("no such model\nand a second line")
        hub[model_config.model] = tmp_path / "cache" / str(model_config.revision)

    def snapshot_download(model: str, revision: Any, cache_dir: Any, local_files_only: bool) -> str:
        assert local_files_only, "a worker may not go to the hub by itself"
        assert cache_dir == "cache"
        return str(hub[model])

    loader = SimpleNamespace(download_model=download_model)
    fake_hub = SimpleNamespace(snapshot_download=snapshot_download)
    monkeypatch.setitem(sys.modules, "huggingface_hub", fake_hub)
    with fake_vllm.installed(tmp_path / "site"):
        fake_vllm.put("vllm.model_executor.model_loader:get_model_loader", lambda _config: loader)
        yield import_module("arcpp_vllm.model_files")


def _worker(model: str, revision: str | None = None) -> Any:
    return SimpleNamespace(
        model_config=SimpleNamespace(model=model, revision=revision),
        load_config=SimpleNamespace(download_dir="cache"),
    )


def test_a_folder_is_itself(model_files: Any, tmp_path: Path) -> None:
    assert model_files.local_folder(_worker(str(tmp_path))) == tmp_path


def test_a_name_is_brought_by_vllm_and_found_in_the_cache(model_files: Any, tmp_path: Path) -> None:
    found = model_files.local_folder(_worker("org/model", "v2"))
    assert found == tmp_path / "cache" / "v2"


def test_a_name_that_cannot_be_had_is_one_line(model_files: Any) -> None:
    with pytest.raises(BadModel, match="no such model") as caught:
        model_files.local_folder(_worker("org/other"))
    assert len(str(caught.value).splitlines()) == 1
    assert caught.value.value == "org/other"
