"""The command a plan prints to be copied, and options that stay with their values."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arcpp.cli import main
from arcpp.report import wrapped

from .planner_models import BUNDLED, QWEN35_27B, write_config

CARDS = ("--device", "a=1GiB", "--device", "b=1GiB")


def command_of(out: str) -> list[str]:
    """The words a shell would make of what is printed below the table."""
    return shlex.split(out.partition("to run it:\n")[2].replace("\\\n", ""))


def test_the_command_is_what_json_says_as_a_shell_reads_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = [
        "plan", str(BUNDLED), *CARDS, "--max-num-seqs", "4", "--kv-cache-dtype", "fp8",
        "--block-size", "32", "--spec-tokens", "1", "--margin", "8MiB", "--no-prefix-caching",
        "--gpu-memory-utilization", "0.5", "--dtype", "bfloat16", "--mamba-cache-mode", "align",
    ]  # fmt: skip
    assert main([*arguments, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert main(arguments) == 0
    out = capsys.readouterr().out
    variables = [f"{name}={value}" for name, value in said["env"].items()]
    assert variables == [f"VLLM_PP_LAYER_PARTITION={','.join(map(str, said['partition']))}",
                         f"ARCPP_MARGIN={8 << 20}"]  # fmt: skip
    assert command_of(out) == [*variables, "vllm", "serve", str(BUNDLED), *said["vllm_args"]]
    for part in ("--gpu-memory-utilization 0.5", "--mamba-cache-mode align", "--max-num-seqs 4",
                 "--distributed-executor-backend arcpp", "--pipeline-parallel-size 2"):  # fmt: skip
        assert part in out, "on one line"
    lines = out.partition("to run it:\n")[2].splitlines()
    assert all(line.endswith(" \\") for line in lines[:-1])
    assert max(len(line) for line in lines) <= 80


@pytest.mark.parametrize("stages", [1, 2])
def test_a_bare_config_is_no_model_to_serve(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, stages: int
) -> None:
    config = str(write_config(tmp_path, QWEN35_27B))
    devices = ["--device", "a=80GiB", "--device", "b=80GiB"][: 2 * stages]
    assert main(["plan", config, *devices]) == 0
    words = command_of(capsys.readouterr().out)
    assert words[words.index("serve") + 1] == "MODEL"
    assert ("--pipeline-parallel-size" in words) is (stages == 2)


@pytest.mark.parametrize(
    "more", [("--host", "openvino"), ("--device", "cpu=8GiB"), ("--device", "CPU=8GiB", "--json")]
)
def test_what_vllm_cannot_run_has_no_command(
    capsys: pytest.CaptureFixture[str], more: tuple[str, ...]
) -> None:
    assert main(["plan", str(BUNDLED), *CARDS, *more]) == 0
    assert "vllm serve" not in capsys.readouterr().out


def test_reserves_are_left_to_the_names_the_server_gives(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["plan", str(BUNDLED), *CARDS, "--reserve", "a=64MiB"]) == 0
    out = capsys.readouterr().out
    assert "to run it with ARCPP_RESERVE=NAME=SIZE for what is reserved:\n" in out


VALUE = st.from_regex(r"[a-z0-9_.:/=]{1,30}", fullmatch=True)
OPTION = st.tuples(st.from_regex(r"--[a-z]{2,12}(-[a-z]{2,10}){0,3}", fullmatch=True), VALUE)
WORDS = st.lists(st.one_of(st.text("abc ,:;()", min_size=1, max_size=20), OPTION), max_size=25)


@settings(max_examples=300, deadline=None)
@given(WORDS)
def test_no_line_ends_between_an_option_and_its_value(
    words: list[str | tuple[str, str]],
) -> None:
    parts = [word if isinstance(word, str) else " ".join(word) for word in words]
    text = " ".join(parts)
    lines = wrapped([text])
    assert " ".join(" ".join(lines).split()) == " ".join(text.split())
    for word in words:
        if isinstance(word, tuple):
            assert any(" ".join(word) in line for line in lines), word
    assert max((len(line) for line in lines), default=0) <= 80


def test_advice_keeps_options_with_their_values(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(BUNDLED), "--device", "a=1GiB", "--device", "cpu=8GiB"]) == 0
    out = capsys.readouterr().out
    assert "--host openvino" in out
    assert not re.search(r"--[a-z-]+\n[a-z0-9]", out)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("plan", "x", "--max-numseqs", "4"),
         "--max-numseqs: is no option of arcpp plan; did you mean --max-num-seqs?"),
        (("plan", "x", "--from_log", "y"),
         "--from_log: is no option of arcpp plan; did you mean --from-log?"),
        (("plan", "x", "--zzzz"), "--zzzz: is no option of arcpp plan"),
        (("plan", "x", "--maximize", "contxt"),
         "--maximize: 'contxt' is not one of 'context', 'concurrency', 'decode'; did you mean "
         "context?"),
        (("plan", "x", "--block-size", "many"), "--block-size: 'many' is not a valid integer"),
        (("pln",), "'pln' is no command of arcpp (bench, doctor, gateway, generate, plan, "
         "plugins); did you mean plan?"),
        (("bench", "hp"), "'hp' is no command of arcpp bench (hop); did you mean hop?"),
    ],
)  # fmt: skip
def test_a_mistyped_word_is_named_with_what_was_meant(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], says: str
) -> None:
    assert main(arguments) == 1
    assert capsys.readouterr().err == f"arcpp: {says}\n"
