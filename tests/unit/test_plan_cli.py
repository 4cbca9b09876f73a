"""The ``arcpp plan`` command: options in, JSON and exit codes out."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arcpp.cli import main

from .planner_models import BUNDLED, QWEN35_27B, write_config

DEVICES = ["--device", "A=256MiB@100", "--device", "B=128MiB@100"]


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["plan", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def plan(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    code, out, err = run(capsys, *arguments, "--json")
    assert code == 0, err
    result = json.loads(out)
    assert isinstance(result, dict)
    return result


def test_json_has_the_contract_keys_and_its_sums_hold(capsys: pytest.CaptureFixture[str]) -> None:
    result = plan(capsys, str(BUNDLED), *DEVICES)
    assert {
        "fits", "host", "partition", "max_model_len", "kv_cache_tokens", "block_tokens",
        "num_blocks", "max_num_seqs", "binding_stage", "decode_tokens_per_s_limit", "stages",
        "warnings", "vllm_args", "env",
    } <= result.keys()  # fmt: skip
    assert result["fits"] is True
    assert sum(result["partition"]) == 8
    for stage in result["stages"]:
        used = sum(stage[key] for key in ("weights_bytes", "kv_bytes", "state_bytes"))
        assert stage["total_bytes"] == used + stage["workspace_bytes"]
        kept = stage["margin_bytes"] + stage["reserve_bytes"]
        assert stage["unused_bytes"] == stage["free_bytes"] - kept - stage["total_bytes"]
        assert stage["unused_bytes"] >= 0


def test_hand_found_partition_of_the_public_report(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = write_config(tmp_path, QWEN35_27B)
    result = plan(
        capsys, str(config), "--device", "B70=31023MiB", "--device", "B580=11605MiB",
        "--host", "vllm@0.23", "--partition", "60,4", "--kv-memory", "0.58GiB",
        "--kv-cache-dtype", "fp8", "--dtype", "float16", "--block-align", "64",
        "--max-model-len", "8192", "--no-prefix-caching",
    )  # fmt: skip
    assert result["kv_cache_tokens"] == 10922
    assert result["block_tokens"] == 1600
    assert result["num_blocks"] == 12


def test_does_not_fit_is_exit_2_with_the_nearest_setting(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = write_config(tmp_path, QWEN35_27B)
    arguments = [
        str(config), "--weights-dtype", "fp8", "--kv-cache-dtype", "fp8", "--max-model-len",
        "262144", "--device", "B70=31023MiB", "--device", "B580=11605MiB",
    ]  # fmt: skip
    code, _, err = run(capsys, *arguments)
    assert code == 2
    assert err.count("\n") == 1
    assert "stage" in err
    nearest = err.rsplit("nearest that fits: --max-model-len ", 1)[1].strip()
    arguments[6] = nearest
    assert run(capsys, *arguments)[0] == 0
    arguments[6] = str(int(nearest) + 1)
    assert run(capsys, *arguments)[0] == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ["--device", "A=0"],
        ["--device", "A=-1"],
        ["--device", "A=lots"],
        ["--device", "A=16 GB?"],
        ["--device", "A=1e3GB"],
        ["--device", "A=inf"],
        ["--device", "A=nan"],
        ["--device", "A=16GiB:0"],
        ["--device", "A=16GiB:17GiB"],
        ["--device", "A=99999PiB"],
        ["--device", "A=1GiB", "--partition", "4,4"],
        ["--device", "A=1GiB", "--device", "B=1GiB", "--partition", "4,5"],
        ["--device", "A=1GiB", "--device", "B=1GiB", "--partition", "8,0"],
        ["--device", "A=1GiB", "--partition", "eight"],
        ["--device", "A=1GiB", "--host", "vllm@1.0"],
        ["--device", "A=1GiB", "--host", "other"],
        ["--device", "A=1GiB", "--max-model-len", "0"],
        ["--device", "A=1GiB", "--max-model-len", "32769"],
        ["--device", "A=1GiB", "--max-num-seqs", "0"],
        ["--device", "A=1GiB", "--block-size", "-3"],
        ["--device", "A=1GiB", "--kv-cache-dtype", "float3"],
        ["--device", "A=1GiB", "--dtype", "int3"],
        ["--device", "A=1GiB", "--gpu-memory-utilization", "1.5"],
        ["--device", "A=1GiB", "--gpu-memory-utilization", "nan"],
        ["--device", "A=1GiB", "--reserve", "B=1MiB"],
        ["--device", "A=1GiB", "--kv-memory", "1GiB,2GiB"],
        ["--device", "A=1GiB", "--no-such-option"],
        ["--device", "A=1GiB", "--block-size", "many"],
        *[[]],
    ],
)
def test_bad_input_is_one_line_and_exit_1(
    capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    code, out, err = run(capsys, str(BUNDLED), *arguments)
    assert (code, out) == (1, "")
    assert err.count("\n") == 1


def test_table_fits_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, str(BUNDLED), *DEVICES)
    assert code == 0
    assert max(len(line) for line in out.splitlines()) <= 80
    assert "binding" in out


def test_command_line_imports_no_host_and_no_rich_for_json() -> None:
    script = (
        "import sys; from arcpp.cli import main; main(['plan', sys.argv[1], '--device', 'A=1GiB',"
        " '--json']); print([m for m in ('torch', 'vllm', 'openvino', 'rich') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(BUNDLED)], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_file_that_cannot_be_read_is_not_called_the_output(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied() -> Any:
        raise PermissionError(errno.EACCES, "Permission denied", "/some/file")

    monkeypatch.setattr("arcpp.cli.plan.read_settings", denied)
    assert run(capsys, str(BUNDLED)) == (1, "", "arcpp: /some/file: Permission denied\n")


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("arcpp ")


OPTIONS = (
    ("--device", "A=256MiB@100"),
    ("--max-model-len", "4096"),
    ("--kv-cache-dtype", "fp8"),
    ("--host", "vllm@0.32"),
    ("--margin", "1MiB"),
    ("--reserve", "A=2MiB"),
    ("--no-prefix-caching",),
    ("--json",),
)


@settings(max_examples=25, deadline=None)
@given(st.permutations(OPTIONS))
def test_order_of_options_is_irrelevant(order: list[tuple[str, ...]]) -> None:
    assert answer([*(part for option in order for part in option)]) == answer(
        [part for option in OPTIONS for part in option]
    )


def answer(arguments: list[str]) -> str:
    """What the command prints."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert main(["plan", str(BUNDLED), *arguments]) == 0
    return out.getvalue()


TEXT = st.text(max_size=30) | st.from_regex(r"[A-B]=[0-9.]{1,5}[KMG]iB(:[0-9]{1,9})?(@[0-9]+)?")


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(
                ["--device", "--partition", "--kv-memory", "--margin", "--reserve", "--host",
                 "--max-model-len", "--block-size", "--spec-tokens", "--kv-cache-dtype",
                 "--gpu-memory-utilization", "--dtype", "--mamba-cache-mode", "--maximize"]
            ),
            TEXT,
        ),
        max_size=4,
    )
)  # fmt: skip
def test_any_text_in_any_option_ends_in_a_code_and_at_most_one_line(
    written: list[tuple[str, str]],
) -> None:
    arguments = [f"{name}={text}" for name, text in written]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(["plan", str(BUNDLED), "--device", "Z=1GiB", *arguments])
    assert code in (0, 1, 2)
    assert err.getvalue().count("\n") == (0 if code == 0 else 1)
