"""What ``--from-log`` takes from the log itself: the version and the options of the server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arcpp import logsettings
from arcpp.cli import main
from arcpp.logsettings import options_in, version_in

from .planner_models import BUNDLED

DATA = Path(__file__).parent / "data"
NODE = ("--device", "cpu=23.54GiB:20.9GiB") * 2
# The lines of the start whose other lines are in the data folder, from vLLM 0.32.0.
STARTED = """\
(APIServer pid=18914) INFO 11-30 21:21:57 [api_utils.py:347]  ▄▄ ▄█ █     █     █ ▀▄▀ █  version \
0.32.0
(APIServer pid=18914) INFO 11-30 21:21:57 [api_utils.py:286] non-default args: {'model_tag': 'hf', \
'host': '127.0.0.1', 'port': 45427, 'model': 'hf', 'dtype': 'bfloat16', 'max_model_len': 1024, \
'enforce_eager': True, 'served_model_name': ['model'], 'distributed_executor_backend': 'arcpp', \
'pipeline_parallel_size': 2, 'gpu_memory_utilization': 0.3, 'max_num_batched_tokens': 256, \
'max_num_seqs': 8}
"""
TAKEN = {
    "dtype": "bfloat16", "max_model_len": "1024", "gpu_memory_utilization": 0.3,
    "max_num_batched_tokens": 256, "max_num_seqs": 8, "host": "vllm@0.32.0",
}  # fmt: skip


def compared(capsys: pytest.CaptureFixture[str], log: Path, *arguments: str) -> dict[str, Any]:
    assert main(["plan", str(BUNDLED), *arguments, "--from-log", str(log), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert isinstance(result, dict)
    return result


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "start.log"
    rest = (DATA / "vllm-0.32-cpu-pp2-arcpp.log").read_text(encoding="utf-8")
    path.write_text(STARTED + rest, encoding="utf-8")
    return path


def test_options_of_the_log_count_as_if_they_were_given(
    capsys: pytest.CaptureFixture[str], log: Path
) -> None:
    written = [
        "--gpu-memory-utilization", "0.3", "--dtype", "bfloat16", "--max-num-batched-tokens",
        "256", "--max-num-seqs", "8", "--host", "vllm@0.32.0", "--max-model-len", "1024",
    ]  # fmt: skip
    taken = compared(capsys, log, *NODE)
    assert taken.pop("log_options") == TAKEN
    given = compared(capsys, log, *NODE, *written)
    assert given.pop("log_options") == {}
    assert taken == given
    assert taken["vllm_args"][-2:] == ["--max-num-seqs", "8"]
    at = taken["vllm_args"].index("--gpu-memory-utilization")
    assert taken["vllm_args"][at + 1] == "0.3", "not less what the processes took"
    rows = {(row["name"], row["rank"]): row for row in taken["log"]}
    for rank in (0, 1):
        row = rows["available KV", rank]
        assert row["predicted"] == pytest.approx(row["logged"], rel=0.01)


def test_what_is_given_wins_and_what_is_taken_is_said(
    capsys: pytest.CaptureFixture[str], log: Path
) -> None:
    result = compared(capsys, log, *NODE, "--max-num-seqs", "3", "--host", "vllm@0.31")
    assert result["max_num_seqs"] == 3
    assert result["host"] == "vllm@0.31"
    names = {"max_num_seqs", "host"}
    assert result["log_options"] == {k: v for k, v in TAKEN.items() if k not in names}
    assert main(["plan", str(BUNDLED), *NODE, "--max-num-seqs", "3", "--from-log", str(log)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert (
        "as the log says: --dtype bfloat16, --max-model-len 1024, --gpu-memory-utilization 0.3, "
        "--max-num-batched-tokens 256, --host vllm@0.32.0 predicted"
    ) in out
    assert "to run it" not in out


def test_an_explicit_cache_of_the_log_is_exact(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """What is logged of it is rounded; without --device the log says how many stages there are."""
    path = tmp_path / "start.log"
    path.write_text(
        "non-default args: {'max_model_len': 2048, 'pipeline_parallel_size': 2, "
        "'kv_cache_memory_bytes': 67108864, 'max_num_seqs': 8, 'dtype': 'bfloat16'}\n"
        "INFO CPU KV cache size: 74,898 tokens, Maximum concurrency for 2,048 tokens per request\n",
        encoding="utf-8",
    )
    result = compared(capsys, path, "--host", "vllm@0.32.0")
    assert len(result["stages"]) == 2
    assert [row["predicted"] for row in result["log"]] == [74_898]


def test_a_version_nobody_knows_is_one_line(capsys: pytest.CaptureFixture[str], log: Path) -> None:
    log.write_text(log.read_text("utf-8").replace("version 0.32.0", "version 0.99.1"), "utf-8")
    arguments = ["plan", str(BUNDLED), *NODE, "--from-log", str(log)]
    assert main(arguments) == 1
    err = capsys.readouterr().err
    assert err.startswith("arcpp: --from-log: version: '0.99.1' of vLLM is stated there and is not")
    assert err.count("\n") == 1
    assert main([*arguments, "--host", "vllm"]) == 0


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ("INFO [api_server.py:1289] vLLM API server version 0.9.2", "0.9.2"),
        ("INFO [x.py:1] vLLM server version 0.32.0+cpu, serving model m", "0.32.0+cpu"),
        (" \x1b[97m█ ▀▄▀ █\x1b[0m  version \x1b[97m0.33.1rc1\x1b[0m", "0.33.1rc1"),
        (
            "INFO [core.py:84] Initializing a V1 LLM engine (v0.26.0) with config: ",
            "0.26.0",
        ),
        ("INFO CUDA version 12.8, torch version 2.11.0", None),
    ],
)
def test_versions_as_vllm_prints_them(line: str, version: str | None) -> None:
    assert version_in(line) == version


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        ("'max_model_len': -1, 'dtype': 'auto', 'kv_cache_dtype': 'auto'", {}),
        ("'enable_prefix_caching': False", {"prefix_caching": False}),
        ("'enable_prefix_caching': 0, 'max_num_seqs': True, 'block_size': '8'", {}),
        ("'mamba_ssm_cache_dtype': 'float32'", {"ssm_dtype": "float32"}),
        ("'hf_overrides': {'max_num_seqs': 3, 'dtype': 'float16'}, 'block_size': 32",
         {"block_size": 32}),
        ("'a': Config(level=3, x={'max_num_seqs': 1}), 'max_num_seqs': 2", {"max_num_seqs": 2}),
        ("'api_key': \"it's, 'max_num_seqs': 9\", 'max_num_seqs': 2", {"max_num_seqs": 2}),
        ("'speculative_config': {'method': 'mtp', 'num_speculative_tokens': 2}",
         {"spec_tokens": 2}),
        ("'speculative_config': {'method': 'ngram', 'num_speculative_tokens': 2}", {}),
    ],
)  # fmt: skip
def test_options_are_read_where_they_are_options(
    arguments: str, options: dict[str, object]
) -> None:
    assert options_in(f"INFO [api_utils.py:286] non-default args: {{{arguments}}}\n") == options
    assert options_in(arguments) is None


@settings(max_examples=300, deadline=None)
@given(st.text("'\"\\,:{}[]() maxnumseqs_0123456789\u2588", max_size=200))
def test_any_text_as_arguments(text: str) -> None:
    options_in(f"non-default args: {{{text}}}")
    options_in(f"non-default args: {{'max_num_seqs': {text}}}")
    version_in(text)


@pytest.mark.filterwarnings("error")
def test_odd_values_say_nothing_on_standard_error() -> None:
    assert options_in("non-default args: {'dtype': '\\}', 'block_size': 1if 1else 2}") is not None


START = "non-default args: {"


@pytest.mark.parametrize("piece", ["'\\", '"\\', "'", "'\\'", "'a': 'b\\"])
@pytest.mark.parametrize("end", ["", "}", "\\"])
def test_text_is_cut_into_pieces_once_and_a_string_without_an_end_takes_the_rest(
    piece: str, end: str
) -> None:
    """Whatever is tried for one piece and given up would be tried again for the next."""
    text = piece * 500 + end
    pieces = [match[0] for match in logsettings._PIECE.finditer(text)]
    assert "".join(pieces) == text
    assert all(len(one) == 1 or one[0] not in "\"'" or one[-1] == one[0] for one in pieces[:-1])
    assert not any(one in "\"'" for one in pieces[:-1])


def test_arguments_begin_and_end_once_in_a_line() -> None:
    assert options_in(START * 800) is None
    assert options_in("} " + START) is None
    assert options_in(START * 3 + "'block_size': 8}") == {}
    assert options_in(START + "'block_size': 8}" + START) == {"block_size": 8}


def test_a_wrong_value_of_the_log_is_called_its_own(
    capsys: pytest.CaptureFixture[str], log: Path
) -> None:
    text = log.read_text("utf-8")
    arguments = ["plan", str(BUNDLED), *NODE, "--from-log", str(log)]
    for before, after, says in (
        ("'max_num_seqs': 8", "'max_num_seqs': 0", "--max-num-seqs in the log: 0 is not a whole"),
        ("'dtype': 'bfloat16'", "'dtype': 'int3'", "--dtype in the log: 'int3' is not a dtype"),
        ("'max_model_len': 1024", "'max_model_len': 99999", "--max-model-len in the log: 99999 is"),
        (" for 1,024 tokens per", " for 99,999 tokens per", "--max-model-len in the log: 99999"),
    ):
        changed = text.replace(before, after)
        if before.startswith(" for"):  # the figure, where no option says it
            changed = changed.replace("'max_model_len': 1024, ", "")
        assert changed != text
        log.write_text(changed, "utf-8")
        assert main(arguments) == 1
        assert capsys.readouterr().err.startswith(f"arcpp: {says}")
    assert main([*arguments, "--max-model-len", "99999"]) == 1
    assert capsys.readouterr().err.startswith("arcpp: --max-model-len: 99999 is more than")


def test_a_node_of_no_memory_takes_nothing_off(
    capsys: pytest.CaptureFixture[str], log: Path
) -> None:
    log.write_text(log.read_text("utf-8").replace("/23.54)", "/-23.54)"), "utf-8")
    assert compared(capsys, log, *NODE)["fits"]


def doubts(result: dict[str, Any]) -> list[str]:
    return [warning for warning in result["warnings"] if warning.startswith("the log is of ")]


def test_a_log_of_another_model_or_of_other_stages_is_doubted(
    capsys: pytest.CaptureFixture[str], log: Path
) -> None:
    assert doubts(compared(capsys, log, *NODE)) == []
    (warning,) = doubts(compared(capsys, log, *NODE, *NODE[:2]))
    assert warning.startswith("the log is of 2 stages, the plan of 3: name one --device for each")
    text = log.read_text("utf-8").replace("Qwen3_5ForConditionalGeneration", "LlamaForCausalLM")
    log.write_text(text, "utf-8")
    (warning,) = doubts(compared(capsys, log, *NODE))
    assert warning == (
        "the log is of a LlamaForCausalLM, the plan of a Qwen3_5ForConditionalGeneration"
    )


def test_the_last_of_several_starts_counts(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Without ranks in the lines a second start looked like a second stage."""
    path = tmp_path / "start.log"
    start = (
        "INFO non-default args: {{'max_num_seqs': {0}}}\nINFO Model loading took {0}.5 GiB\n"
        "INFO Available KV cache memory: {0}.25 GiB\nINFO GPU KV cache size: {0},000 tokens\n"
    )
    path.write_text(start.format(3) + start.format(4), "utf-8")
    result = compared(capsys, path, "--device", "a=24GiB")
    assert doubts(result) == []
    assert result["max_num_seqs"] == 4
    logged = [row["logged"] for row in result["log"] if row["rank"] == 0]
    assert logged == [4.5, 4.25]


@pytest.mark.parametrize("kind", ["arcpp", "stock"])
def test_any_beginning_of_a_log_is_compared_or_said_to_hold_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, kind: str
) -> None:
    whole = STARTED + (DATA / f"vllm-0.32-cpu-pp2-{kind}.log").read_text("utf-8")
    path, rows = tmp_path / "start.log", []
    for length in range(0, len(whole) + 97, 97):
        path.write_text(whole[:length], "utf-8")
        code = main(["plan", str(BUNDLED), *NODE, "--from-log", str(path), "--json"])
        captured = capsys.readouterr()
        assert captured.err.count("\n") == code
        rows.append(len(json.loads(captured.out)["log"]) if code == 0 else 0)
    assert rows[0] == 0
    assert rows[-1] == max(rows) >= 5
