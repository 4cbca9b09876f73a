"""What the planner says a stage will have, and what a compiled stage really has."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("numpy", reason="the OpenVINO engine needs numpy")
pytest.importorskip("openvino", reason="openvino is not installed: its engine is not tested")

from arcpp_openvino.chain import Chain
from arcpp_openvino.inputs import smaller_blocks
from arcpp_openvino.options import ChainOptions
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
    np = pytest.importorskip("numpy")
    blocks = np.array([5, 0, 7], np.int32)
    assert smaller_blocks(blocks, 2).tolist() == [10, 11, 0, 1, 14, 15]
    assert smaller_blocks(blocks, 1) is blocks
