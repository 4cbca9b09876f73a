"""What the planner says a stage will have, and what a compiled stage really has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

np = pytest.importorskip("numpy", reason="the OpenVINO engine needs numpy")
ov = pytest.importorskip("openvino", reason="openvino is not installed: its engine is not tested")

from arcpp.errors import BadInput
from arcpp.hooks import hooks_for
from arcpp.probe import Reading
from arcpp.settings import read_settings
from arcpp_openvino.chain import Chain
from arcpp_openvino.inputs import smaller_blocks
from arcpp_openvino.options import ChainOptions
from arcpp_openvino.tables import allocate
from tests.support.openvino_chain import HYBRID, MODELS, greedy, prompts

QWEN = MODELS / "tiny-ov" / "qwen3-f16"


@pytest.mark.parametrize(
    ("model", "partition", "precision"),
    [
        (HYBRID, (3, 5), None),
        *((QWEN, (1, 2), precision) for precision in ("u8", "u4", "f16", "f32")),
    ],
    ids=str,
)
def test_tables_are_as_large_as_planned(
    model: Path, partition: tuple[int, ...], precision: str | None
) -> None:
    options = ChainOptions(
        max_sequences=3, max_model_len=640, kv_cache_precision=precision, max_batch_tokens=64
    )
    with Chain.from_folder(model, ("CPU", "CPU"), partition, options) as chain:
        plan = chain.plan
        assert plan is not None
        blocks = 3 * 640 // 32  # all that three requests of that length can use
        assert chain.profile.kv_blocks == blocks
        assert chain.profile.block_size == plan.block_tokens
        planned = [(one.bytes_per_block * blocks, one.state_bytes) for one in plan.stages]
        assert [stage.table_bytes() for stage in chain.stages] == planned


def test_a_planned_chain_runs() -> None:
    with Chain.from_folder(HYBRID, ("CPU", "CPU"), None, ChainOptions(max_model_len=512)) as chain:
        assert chain.plan is not None
        ranges = [(stage.low, stage.high) for stage in chain.stages]
        assert ranges == [(stage.low, stage.high) for stage in chain.plan.stages]
        assert len(greedy(chain, prompts()[:2], 4)[0]) == 4


def test_memory_of_a_processor_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Windows. It can be set, or partition and blocks given instead of a plan."""
    unread = Reading("/proc/meminfo", error="cannot be read")
    for module in ("devices", "room"):
        monkeypatch.setattr(f"arcpp_openvino.{module}.cpu_reading", lambda: unread)
    with pytest.raises(BadInput, match=r"device CPU: 0 .* set device_memory, or give partition"):
        Chain.from_folder(QWEN, ("CPU",))
    Chain.from_folder(QWEN, ("CPU",), (3,), ChainOptions(kv_blocks=4)).close()
    monkeypatch.setenv("ARCPP_DEVICE_MEMORY", "cpu=1GiB")
    with Chain.from_folder(QWEN, ("CPU",), None, ChainOptions(max_model_len=64)) as chain:
        assert chain.profile.kv_blocks == 4 * 2


def test_hooks_are_told_of_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    hooks, told = hooks_for(read_settings()), []
    monkeypatch.setattr(hooks, "plan_made", lambda plan, stage: told.append((plan, stage)))
    options = ChainOptions(max_model_len=64)
    with Chain.from_folder(QWEN, ("CPU", "CPU"), (1, 2), options, hooks) as chain:
        assert told == [(chain.plan, 0)]


def test_tables_of_a_card_are_of_its_own_context() -> None:
    """By a stand-in of OpenVINO: no card was there to run it."""
    made: list[Any] = []

    class Context:
        def __init__(self, device: str) -> None:
            self.device = device

        def create_tensor(self, kind: Any, shape: Any, properties: dict[str, Any]) -> Any:
            made.append((self.device, kind, list(shape), properties))
            return f"tensor {len(made)}"

    class Core:
        get_default_context = staticmethod(Context)

    shapes = {"key_cache.0": (ov.Type.u8, [9, 2, 20, 16])}
    assert allocate(Core(), "GPU.1", shapes) == {"key_cache.0": "tensor 1"}
    assert made == [("GPU.1", ov.Type.u8, [9, 2, 20, 16], {})]


def test_a_second_start_takes_stages_from_the_cache(tmp_path: Path) -> None:
    """Names made up on the way do not matter. OpenVINO 2026.4's CPU plugin cannot read back a
    stage with paged attention, and compiles it again; the first stage here has none."""
    options = ChainOptions(kv_blocks=16, precision="f32", cache_dir=tmp_path)
    texts = []
    for _ in range(2):
        with Chain.from_folder(HYBRID, ("CPU", "CPU"), (3, 5), options) as chain:
            texts.append(greedy(chain, prompts()[:2], 4))
            loaded = [stage.compiled.get_property("LOADED_FROM_CACHE") for stage in chain.stages]
    assert loaded[0]
    assert len(list(tmp_path.glob("*.blob"))) == 2
    assert texts[0] == texts[1]


def test_blocks_of_a_device_with_smaller_ones() -> None:
    blocks = np.array([5, 0, 7], np.int32)
    assert smaller_blocks(blocks, 2).tolist() == [10, 11, 0, 1, 14, 15]
    assert smaller_blocks(blocks, 1) is blocks
