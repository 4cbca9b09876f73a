"""What goes wrong: folders, devices, memory, a stage within a step. Each is one clear line."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

np = pytest.importorskip("numpy", reason="the OpenVINO engine needs numpy")
ov = pytest.importorskip("openvino", reason="openvino is not installed: its engine is not tested")

from openvino import opset13 as ops

from arcpp.errors import BadInput, BadModel, DoesNotFit
from arcpp.supervise import FaultKind
from arcpp_openvino.batch import StepBatch
from arcpp_openvino.chain import Chain
from arcpp_openvino.errors import StageFailed, StepNotFinite
from arcpp_openvino.folder import check_tokenizers, open_folder
from arcpp_openvino.options import ChainOptions
from tests.support.openvino_chain import (
    HYBRID,
    after,
    batch_of,
    expected,
    greedy,
    open_chain,
    prompts,
    requests,
)

MODEL = "openvino_language_model"


@pytest.fixture(scope="module")
def chain() -> Iterator[Chain]:
    """Positions are read on the second stage only: the first has no attention layer."""
    with open_chain(HYBRID, [3, 5], microbatches=2) as opened:
        yield opened


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the bundled model that a test may spoil."""
    for file in HYBRID.glob("openvino_*"):
        if "vision" not in file.name and "mtp" not in file.name:
            shutil.copy(file, tmp_path)
    shutil.copy(HYBRID / "config.json", tmp_path)
    return tmp_path


def opened(path: Path, *devices: str, **options: Any) -> Chain:
    return Chain.from_folder(path, devices or ("CPU",), None, ChainOptions(**options))


def without_positions(batch: StepBatch) -> StepBatch:
    """A batch that the stage with attention layers must refuse."""
    return replace(batch, positions=batch.positions[:-1])


def test_a_failing_step_names_stage_and_device(chain: Chain) -> None:
    asked = requests(chain, prompts()[:2], 8)
    with pytest.raises(StageFailed) as failed:
        chain.run(without_positions(batch_of(chain, asked)))
    assert (failed.value.stage, failed.value.device, failed.value.doing) == (1, "CPU", "step")
    assert str(failed.value).startswith("StageFailed on CPU (stage 1): ")
    assert "\n" not in str(failed.value)


def test_a_failing_microbatch_leaves_the_other_alone(chain: Chain) -> None:
    asked = requests(chain, prompts()[:2], 8)
    chain.submit(batch_of(chain, asked[:1]), 0)
    chain.submit(without_positions(batch_of(chain, asked[1:])), 1)
    after(asked[:1], chain.collect(0))
    with pytest.raises(StageFailed):
        chain.collect(1)
    assert asked[0].output == expected()[0][:1]


@pytest.mark.parametrize("stage", [0, 1, None])
def test_a_restarted_stage_computes_requests_anew(chain: Chain, stage: int | None) -> None:
    before = [list(tables) for tables in ([s.tables.values() for s in chain.stages])]
    asked = requests(chain, prompts()[:2], 8)
    chain.submit(batch_of(chain, asked), 1)
    chain.restart(stage)
    with pytest.raises(ValueError, match="no step in flight"):
        chain.collect(1)
    fresh = [number for number, one in enumerate(chain.stages) if not _same(one, before[number])]
    assert fresh == ([0, 1] if stage is None else [stage])
    assert greedy(chain, prompts()[:3], 8) == [output[:8] for output in expected()[:3]]
    chain.check_integrity()


def _same(stage: Any, tables: list[Any]) -> bool:
    return all(one is other for one, other in zip(stage.tables.values(), tables, strict=True))


def test_a_closed_chain_lets_go(chain: Chain) -> None:
    with open_chain(HYBRID, [8]) as short:
        short.submit(batch_of(short, requests(short, prompts()[:1], 1)))
    assert [stage.tables for stage in short.stages] == [{}]
    assert short.states is None


@pytest.mark.parametrize(
    ("device", "right"),
    [
        ("GPU.7", "is not here: OpenVINO sees CPU"),
        ("NPU", "is not one device: write CPU or GPU.N"),
        ("HETERO:GPU.0,GPU.1", "is not one device"),
        ("AUTO", "is not one device"),
    ],
)
def test_an_unknown_device(device: str, right: str) -> None:
    with pytest.raises(BadInput, match=f"device: '{device}' .*{right}"):
        opened(HYBRID, "CPU", device)


def test_devices_are_a_list() -> None:
    with pytest.raises(BadInput, match="is not a list of devices"):
        Chain.from_folder(HYBRID, "CPU")


def test_a_plan_refuses_a_device_without_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARCPP_DEVICE_MEMORY", "cpu=20MiB")
    with pytest.raises(DoesNotFit, match="cpu"):
        opened(HYBRID, "CPU", "CPU")


def test_blocks_that_were_given_must_fit_too() -> None:
    with pytest.raises(DoesNotFit, match=r"stage 0 on CPU: .* kv_blocks=\d+ would") as refused:
        open_chain(HYBRID, [4, 4], kv_blocks=10**9)
    assert refused.value.missing_bytes > 10**9


def test_memory_that_runs_out_is_a_fault_of_its_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise RuntimeError("Exception from a.cpp:1:\n[GPU] exceeded max size of memory allocation")

    monkeypatch.setattr("arcpp_openvino.stage.allocate", full)
    with pytest.raises(StageFailed, match=r"^OutOfDeviceMemory on CPU \(stage 0\): \[GPU\]") as out:
        open_chain(HYBRID, [4, 4])
    assert out.value.fault.kind is FaultKind.OUT_OF_DEVICE_MEMORY
    assert out.value.doing == "allocate"


def test_a_property_openvino_does_not_have() -> None:
    with pytest.raises(StageFailed, match=r"stage 0.*NO_SUCH_PROPERTY") as failed:
        open_chain(HYBRID, [8], properties={"CPU": {"NO_SUCH_PROPERTY": 1}})
    assert failed.value.doing == "compile"


@pytest.mark.parametrize("partition", [[4, 3], [8], [2, 3, 3]])
def test_a_partition_of_another_model(partition: list[int]) -> None:
    with pytest.raises(BadInput, match="partition"):
        Chain.from_folder(HYBRID, ("CPU", "CPU"), partition, ChainOptions(kv_blocks=8))


@pytest.mark.parametrize(
    "wrong", [{"kv_blocks": 0}, {"state_blocks": 1}, {"precision": "f8"}, {"microbatches": 0}]
)
def test_an_option_that_cannot_be(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(BadInput, match=f"^{name}: "):
        ChainOptions(**wrong)


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(BadModel, match=r"holds neither openvino_model.xml nor"):
        opened(tmp_path)
    with pytest.raises(BadModel, match="is not a folder"):
        opened(tmp_path / "nothing")


def test_weights_that_are_cut_off(folder: Path) -> None:
    weights = folder / f"{MODEL}.bin"
    weights.write_bytes(weights.read_bytes()[:-4])
    with pytest.raises(BadModel, match=r"15413678 bytes, but .* describes 15413682: it is cut off"):
        opened(folder)


def test_weights_of_another_export(folder: Path) -> None:
    with (folder / f"{MODEL}.bin").open("ab") as weights:
        weights.write(bytes(100))
    with pytest.raises(BadModel, match="they are not of one export"):
        opened(folder)


def test_weights_that_are_missing(folder: Path) -> None:
    (folder / f"{MODEL}.bin").unlink()
    with pytest.raises(BadModel, match=rf"'{MODEL}.bin' is missing"):
        opened(folder)


def test_xml_that_is_cut_off(folder: Path) -> None:
    xml = folder / f"{MODEL}.xml"
    xml.write_bytes(xml.read_bytes()[:500_000])
    with pytest.raises(BadModel, match="500000 bytes are not all of it"):
        opened(folder)


def test_xml_that_is_none(folder: Path) -> None:
    (folder / f"{MODEL}.xml").write_text("<html></net>")
    with pytest.raises(BadModel, match="is why"):
        Chain.from_folder(folder, ("CPU",), (8,), ChainOptions(kv_blocks=8))


def test_embeddings_that_are_missing(folder: Path) -> None:
    (folder / "openvino_text_embeddings_model.xml").unlink()
    with pytest.raises(BadModel, match=r"'openvino_text_embeddings_model\.xml' is missing"):
        opened(folder)


def test_a_tokenizer_that_is_missing(folder: Path) -> None:
    check_tokenizers(open_folder(folder))
    (folder / "openvino_detokenizer.xml").unlink()
    with pytest.raises(BadModel, match=r"'openvino_detokenizer.xml' is missing: run convert_token"):
        check_tokenizers(open_folder(folder))


def test_a_model_without_a_paged_form(folder: Path) -> None:
    other = "openvino_vision_embeddings_pos_model"
    for end in ("xml", "bin"):
        shutil.copy(HYBRID / f"{other}.{end}", folder / f"{MODEL}.{end}")
    with pytest.raises(BadModel, match="has no paged form"):
        Chain.from_folder(folder, ("CPU",), (8,), ChainOptions(kv_blocks=8))


def test_a_model_that_counts_positions_itself(folder: Path) -> None:
    """As text-only exports of Qwen3.5 do: in the paged form they would count across sequences."""
    core = ov.Core()
    model = core.read_model(str(HYBRID / f"{MODEL}.xml"))
    (given,) = (p for p in model.get_parameters() if "position_ids" in p.output(0).get_names())
    (ids,) = (p for p in model.get_parameters() if "inputs_embeds" in p.output(0).get_names())
    zero, one = ops.constant(np.int64(0)), ops.constant(np.int64(1))
    count = ops.gather(ops.shape_of(ids), one, zero)
    own = ops.broadcast(
        ops.range(zero, count, one, "i64"),
        ops.concat([ops.constant(np.array([4, 1])), ops.unsqueeze(count, zero)], 0),
    )
    for target in list(given.output(0).get_target_inputs()):
        target.replace_source_output(own.output(0))
    model.remove_parameter(given)
    ov.save_model(model, str(folder / f"{MODEL}.xml"), compress_to_fp16=False)
    with pytest.raises(BadModel, match=r"position_ids.* does not reach its rotary embedding"):
        Chain.from_folder(folder, ("CPU",), (8,), ChainOptions(kv_blocks=8))


def test_names_tell_where_layers_end_too(folder: Path) -> None:
    """Without what the exporter wrote down."""
    xml = folder / f"{MODEL}.xml"
    text = xml.read_text(encoding="utf-8")
    xml.write_text(text.replace("hidden_states_decoder_layers", "nothing"), encoding="utf-8")
    with open_chain(folder, [3, 5]) as named:
        assert greedy(named, prompts()[:2], 4) == [output[:4] for output in expected()[:2]]


def test_names_that_tell_nothing(folder: Path) -> None:
    xml = folder / f"{MODEL}.xml"
    text = xml.read_text(encoding="utf-8").replace("hidden_states_decoder_layers", "nothing")
    xml.write_text(text.replace("layers.5/aten::add/Add_1", "layers.5/other"), encoding="utf-8")
    with pytest.raises(BadModel, match="do not tell where decoder layers end"):
        Chain.from_folder(folder, ("CPU",), (8,), ChainOptions(kv_blocks=8))


def test_a_stage_that_does_not_answer_in_time(chain: Chain) -> None:
    """The step stays in flight, and can still be waited for."""
    asked = requests(chain, [prompts()[-1]], 1)
    chain.submit(batch_of(chain, asked))
    with pytest.raises(StageFailed, match=r"^StageStalled on CPU \(stage \d\): .*within 0 s"):
        chain.collect(timeout=0)
    with pytest.raises(ValueError, match="collect it first"):
        chain.submit(batch_of(chain, asked))
    assert chain.collect(timeout=60).argmax() == expected()[-1][0]


def test_what_still_runs_is_left_to_itself(chain: Chain) -> None:
    chain.submit(batch_of(chain, requests(chain, [prompts()[-1]], 1)))
    chain.restart(timeout=0)
    assert greedy(chain, prompts()[:2], 4) == [output[:4] for output in expected()[:2]]


@pytest.mark.parametrize("stage", [0, 1])
def test_values_that_are_no_numbers(chain: Chain, stage: int) -> None:
    """A poisoned state of one sequence: its row is named, and the stage; the other row is good."""
    asked = requests(chain, prompts()[:2], 2)
    after(asked, chain.run(batch_of(chain, asked)))
    poisoned = next(iter(chain.stages[stage].tables[name] for name in _states(chain, stage)))
    poisoned.data[asked[1].state] = np.nan
    with pytest.raises(StepNotFinite, match=f"logits of rows 1, from stage {stage} on") as found:
        chain.run(batch_of(chain, asked))
    poisoned.data[asked[1].state] = 0
    assert (found.value.rows, found.value.stage) == ((1,), stage)
    assert found.value.logits[0].argmax() == expected()[0][1]


def _states(chain: Chain, stage: int) -> list[str]:
    return [name for name in chain.stages[stage].tables if name.startswith("gated_delta")]
