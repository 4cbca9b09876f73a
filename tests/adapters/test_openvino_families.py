"""Other models than the bundled one, against OpenVINO's own whole model on one device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

np = pytest.importorskip("numpy", reason="the OpenVINO engine needs numpy")
ov = pytest.importorskip("openvino", reason="openvino is not installed: its engine is not tested")

from tests.support.openvino_chain import MODELS, after, batch_of, open_chain, requests

TINY = MODELS / "tiny-ov"
STEPS = 24
CUTS: dict[str, list[list[int]]] = {
    "qwen3-f16": [[3], [2, 1], [1, 1, 1]],
    "qwen3-int8": [[3], [1, 2]],
    "qwen3-next-int4": [[4], [2, 2], [1, 1, 1, 1]],
}
_MADE: dict[str, tuple[list[list[int]], Any]] = {}


def whole_model(name: str) -> tuple[list[list[int]], Any]:
    """Prompts with their greedy continuations, and logits [steps, prompts, vocabulary].

    By the export as it is, with its own states and one sequence at a time.
    """
    if name not in _MADE:
        rng = np.random.default_rng(0)
        ids = [rng.integers(0, 128, count).tolist() for count in (5, 40, 71)]
        _MADE[name] = _run_whole(TINY / name, ids)
    return _MADE[name]


def _run_whole(folder: Path, ids: list[list[int]]) -> tuple[list[list[int]], Any]:
    config = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
    compiled = ov.Core().compile_model(str(folder / "openvino_model.xml"), "CPU", config)
    names = {name for port in compiled.inputs for name in port.get_names()}
    found = np.zeros((STEPS, len(ids), 128), np.float32)
    for number, prompt in enumerate(ids):
        request = compiled.create_infer_request()
        todo, past = np.array([prompt]), 0
        for step in range(STEPS):
            count = todo.shape[1]
            given = {
                "input_ids": todo,
                "attention_mask": np.ones((1, past + count), np.int64),
                "position_ids": np.arange(past, past + count)[None],
                "beam_idx": np.zeros(1, np.int32),
            }
            request.infer({name: value for name, value in given.items() if name in names})
            found[step, number] = request.get_output_tensor(0).data[0, -1]
            todo, past = found[step, number].argmax()[None, None], past + count
    return ids, found


@pytest.mark.parametrize(
    ("name", "partition"), [(name, cut) for name, cuts in CUTS.items() for cut in cuts], ids=str
)
def test_stages_give_what_the_whole_model_gives(name: str, partition: list[int]) -> None:
    """All prompts in one batch. float32 throughout, so that only the order of sums differs."""
    ids, right = whole_model(name)
    with open_chain(TINY / name, partition, microbatches=2) as chain:
        asked = requests(chain, ids, STEPS)
        for step in range(STEPS):
            logits = chain.run(batch_of(chain, asked), step % 2)
            assert abs(logits - right[step]).max() < 2e-6
            after(asked, logits)
    assert [request.output for request in asked] == right.argmax(axis=2).T.tolist()
    assert chain.profile.hybrid == ("next" in name)


def test_a_dense_model_has_no_state() -> None:
    with open_chain(TINY / "qwen3-f16", [1, 2]) as chain:
        assert chain.states is None
        assert chain.profile.state_blocks == 0
        assert chain.profile.layer_kinds == ("attention",) * 3
        assert [stage.table_bytes()[1] for stage in chain.stages] == [0, 0]
        chain.check_integrity()
