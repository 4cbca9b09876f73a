"""Files made to be slow or large: refused before they cost, or read in time that is linear."""

from __future__ import annotations

import json
import random
import struct
import subprocess
import sys
import tracemalloc
from collections import deque
from pathlib import Path
from typing import Any

import pytest

from arcpp.cli import main
from arcpp.errors import BadModel
from arcpp.profile import load_profile, openvino_ir, readers
from arcpp.profile.openvino_ir import ir_sizes
from arcpp.profile.readers import parse_json, read_checkpoint, read_header

from .planner_models import BUNDLED, LLAMA_8B
from .test_readers import packed, tensor

MIB = 1024**2


@pytest.fixture
def _no_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is refused must be refused before JSON is made objects of."""

    def loads(*_: object, **__: object) -> Any:
        raise AssertionError("was parsed")

    monkeypatch.setattr(json, "loads", loads)


@pytest.mark.usefixtures("_no_parser")
@pytest.mark.parametrize("piece", [b"[],", b"{},", b"0,", b'"",', b'{"":{}},', b'{"":0},'])
def test_json_of_very_many_small_values_is_not_parsed(piece: bytes) -> None:
    raw = b'{"weight_map": [' + piece * 4_000_001 + b"0]}"
    with pytest.raises(BadModel, match=r"x: \d+ values are too many"):
        parse_json(raw, "x")


def sparse(path: Path, start: bytes, size: int) -> Path:
    """A file of ``size`` bytes that takes no room on the disk."""
    with path.open("wb") as file:
        file.write(start)
        file.truncate(size)
    return path


@pytest.mark.usefixtures("_no_parser")
def test_headers_larger_than_any_checkpoints_are_not_read(tmp_path: Path) -> None:
    long = sparse(tmp_path / "a.safetensors", struct.pack("<Q", 33 * MIB), 40 * MIB)
    with pytest.raises(BadModel, match=r"34603008 bytes of header are too many"):
        read_header(long)
    (tmp_path / "two").mkdir()
    for index in range(3):  # each may be, together they may not
        shard = tmp_path / "two" / f"{index}.safetensors"
        sparse(shard, struct.pack("<Q", 30 * MIB), 40 * MIB)
    with pytest.raises(BadModel, match=r"94371840 bytes of safetensors headers are too many"):
        list(read_checkpoint(tmp_path / "two"))


@pytest.mark.usefixtures("_no_parser")
def test_an_index_larger_than_any_checkpoints_is_not_read(tmp_path: Path) -> None:
    sparse(tmp_path / "model.safetensors.index.json", b"", 65 * MIB)
    with pytest.raises(BadModel, match="too large"):
        list(read_checkpoint(tmp_path))


def test_an_index_may_not_name_more_files_than_a_folder_may_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "_SHARD_LIMIT", 2)
    names = [f"{index}.safetensors" for index in range(3)]
    for index, name in enumerate(names):
        (tmp_path / name).write_bytes(packed({f"t{index}": tensor(0, 1, [1])}, b"x"))
    with pytest.raises(BadModel, match="too many"):
        list(read_checkpoint(tmp_path))
    index_of = {"weight_map": {f"t{index}": name for index, name in enumerate(names)}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index_of), "utf-8")
    with pytest.raises(BadModel, match="too many"):
        list(read_checkpoint(tmp_path))


def test_as_many_tensors_as_the_largest_checkpoints_have_in_a_file_are_read(tmp_path: Path) -> None:
    """Names and shapes as in models of a trillion weights; 60,000 are a third of a checkpoint's."""
    name = "model.layers.{}.mlp.experts.{}.gate_up_proj.weight_scale"
    header = {
        name.format(i // 384, i % 384): tensor(4 * i, 4 * i + 4, [2, 2]) for i in range(60_000)
    }
    path = tmp_path / "x.safetensors"
    path.write_bytes(packed(header, b"x" * 240_000))
    assert len(read_header(path)) == 60_000


def test_a_header_takes_memory_in_proportion(tmp_path: Path) -> None:
    """The shortest names and shapes there are: most objects for a byte. 17 times the header
    as the parser's own objects."""
    header = {f"{i}": tensor(i, i + 1, [1]) for i in range(10_000)}
    path = tmp_path / "x.safetensors"
    path.write_bytes(packed(header, b"x" * 10_000))
    tracemalloc.start()
    try:
        assert len(read_header(path)) == 10_000
        assert tracemalloc.get_traced_memory()[1] < 12 * path.stat().st_size
    finally:
        tracemalloc.stop()


def write_ir(tmp_path: Path, *pieces: str) -> Path:
    path = tmp_path / "openvino_model.xml"
    path.write_text("".join(pieces), encoding="utf-8")
    path.with_suffix(".bin").write_bytes(b"x" * 100_000)
    return path


@pytest.mark.parametrize(
    "hostile",
    ['<layer id="1" name="{}"/>', "<!--{}-->", "<?x {}?>", "<{}/>", "</{}>", '<layer {}="1"/>'],
)
def test_a_tag_that_does_not_end_is_not_read_to_its_end(tmp_path: Path, hostile: str) -> None:
    path = write_ir(tmp_path, "<net>", hostile.format("x" * (9 * MIB)), "</net>")
    with pytest.raises(BadModel, match=r"[67]\d{6} bytes hold a tag that is too long"):
        ir_sizes(path)


def test_long_text_and_many_tags_are_no_long_tag(tmp_path: Path) -> None:
    layer = '<layer id="{}" name="n" type="Add"/>'
    many = "".join(layer.format(index) for index in range(150_000))
    path = write_ir(tmp_path, "<net>", " " * (6 * MIB), "\n" * (6 * MIB), many, "</net>")
    assert ir_sizes(path) == {}


def test_edges_and_operations_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openvino_ir, "_EDGE_LIMIT", 9)
    edges = '<edge from-layer="1" to-layer="2"/>' * 10
    with pytest.raises(BadModel, match="edges are too many"):
        ir_sizes(write_ir(tmp_path, '<net><layer id="1"/>', edges, "</net>"))


def test_the_files_of_an_export_are_bounded_together(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B), encoding="utf-8")
    write_ir(tmp_path, "<net/>")
    for index in range(3):
        sparse(tmp_path / f"openvino_vision_{index}.xml", b"", 100 * MIB)
    with pytest.raises(BadModel, match="bytes of XML are too many"):
        load_profile(tmp_path)


class Counted(dict[str, list[str]]):
    """Edges that count how often they are followed."""

    followed = 0

    def __getitem__(self, key: str) -> list[str]:
        self.followed += 1
        return super().__getitem__(key)


def test_owners_cost_one_look_at_each_operation() -> None:
    """Many unnamed constants into one long unnamed chain, which ends in a layer."""
    graph = openvino_ir._Graph()
    graph.names = {"end": "model.layers.7.mul"}
    graph.edges = Counted({f"c{index}": ["n0"] for index in range(5000)})
    graph.edges.update({f"n{index}": [f"n{index + 1}"] for index in range(999)})
    graph.edges["n999"] = ["end"]
    owners = openvino_ir._owners(graph)
    assert set(owners.values()) == {7}
    assert len(owners) == 6001
    assert graph.edges.followed <= 6001


def nearest(graph: openvino_ir._Graph, start: str) -> int | str | None:
    """Owner by a search of its own: the rule, written down without sharing any work."""
    seen, queue = {start}, deque([start])
    while queue:
        node = queue.popleft()
        found = openvino_ir._named(graph.names.get(node, ""))
        if found is not None:
            return found
        for target in graph.edges.get(node, ()):
            if target not in seen:
                seen.add(target)
                queue.append(target)
    return None


@pytest.mark.parametrize("seed", range(40))
def test_owners_are_those_of_the_nearest_named_operation(seed: int) -> None:
    """On random graphs with cycles, loops of one, repeated edges and ids without an operation."""
    rng = random.Random(seed)
    ids = [str(number) for number in range(rng.randint(1, 40))]
    names = ["", "x", "layers.1.a", "layers.2.b", "lm_head", "layers.3"]
    graph = openvino_ir._Graph()
    graph.names = {number: rng.choice(names) for number in ids if rng.random() < 0.8}
    for _ in range(rng.randint(0, 80)):
        graph.edges.setdefault(rng.choice(ids), []).append(rng.choice(ids))
    owners = openvino_ir._owners(graph)
    assert {number: owners.get(number) for number in ids} == {n: nearest(graph, n) for n in ids}


def test_too_little_memory_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*_: object, **__: object) -> Any:
        raise MemoryError

    monkeypatch.setattr(readers.json, "loads", read)
    assert main(["plan", str(BUNDLED), "--device", "A=1GiB"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("arcpp: memory: ")
    assert captured.err.count("\n") == 1


def test_a_limit_on_memory_is_one_line_too(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"x": [[] for _ in range(1_900_000)]}), encoding="utf-8")
    limit = "import resource; resource.setrlimit(resource.RLIMIT_AS, (160 << 20, 160 << 20)); "
    run = "import sys; from arcpp.cli import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", limit + run, "plan", str(config), "--device", "A=1GiB"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("arcpp: memory: ")
    assert done.stderr.count("\n") == 1
