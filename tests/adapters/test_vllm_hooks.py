"""A plugin package, installed as anybody would, changes what a real vLLM worker does.

One server for settings too: they come through --additional-config.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from tests.support.plugin_packages import install
from tests.support.vllm_server import HYBRID_MODEL, ROOT, VllmServer

from .conftest import SMALL

pytestmark = pytest.mark.vllm

EXAMPLE = ROOT / "docs" / "examples" / "arcpp_example_plugin"
SETTINGS = {"arcpp": {"link_timeout": 77, "reserve": {"cpu:0": "64MiB"}, "trace_hooks": True}}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder for PYTHONPATH with the example plugin installed in it."""
    folder = tmp_path_factory.mktemp("plugin")
    source = shutil.copytree(EXAMPLE, folder / "source")
    command = [
        sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index",
        "--no-build-isolation", "--target", str(folder / "target"), str(source),
    ]  # fmt: skip
    subprocess.run(command, check=True)
    return folder / "target"


@pytest.fixture(scope="module")
def server(installed: Path) -> Iterator[VllmServer]:
    path = os.pathsep.join(filter(None, [str(installed), os.environ.get("PYTHONPATH")]))
    env = {
        "PYTHONPATH": path,
        "EXAMPLE_FIRST_LAYERS": "2",
        "EXAMPLE_LAYER_BYTES": str(64 << 20),
        "EXAMPLE_COUNT_HOPS": "1",
    }
    settings = ("--additional-config", json.dumps(SETTINGS))
    with VllmServer(HYBRID_MODEL, *SMALL, *settings, env=env, preloaded=True) as server:
        yield server


def test_the_server_answers_over_the_plugins_link(server: VllmServer) -> None:
    row = json.loads((HYBRID_MODEL.parent / "reference.json").read_text())["prompts"][1]
    client = openai.OpenAI(base_url=server.url, api_key="none", timeout=300)
    reply = client.completions.create(
        model="model", prompt=row["prompt_ids"], max_tokens=16, temperature=0
    )
    assert row["output"].startswith(reply.choices[0].text)
    assert "example plugin: stage0->stage1: the first hop over counted gloo" in server.text()


def test_the_plugins_partition_is_the_one_that_runs(server: VllmServer) -> None:
    text = server.text()
    for stage, layers in enumerate(("[0, 2)", "[2, 8)")):
        assert f"arcpp: stage {stage} on cpu holds layers {layers}" in text


def test_every_stage_is_told_of_the_plan(server: VllmServer) -> None:
    text = server.text()
    assert text.count("example plugin: stage 0 of 2: layers 0 to 1") == 1
    assert text.count("example plugin: stage 1 of 2: layers 2 to 7") == 1


def test_the_plugins_profile_and_the_settings_are_in_the_table(server: VllmServer) -> None:
    """2 and 6 layers with 64 MiB more each, and 0.06 GiB on top of the margin of 0.25 GiB."""
    rows = [line.split() for line in server.text().splitlines() if " cpu:0 " in line]
    weights = [float(row[row.index("cpu:0") + 2]) for row in rows]
    margins = [float(row[row.index("cpu:0") + 6]) for row in rows]
    assert len(weights) == 2
    assert weights[0] > 2 * 0.0625
    assert weights[1] > 6 * 0.0625
    assert margins == [0.31, 0.31]


def test_the_trace_says_who_was_asked(server: VllmServer) -> None:
    """Stages write at the same moment, and vLLM's prefix can join two lines: count by the words."""
    lines = [f"arcpp: hook {rest}" for rest in server.text().split("arcpp: hook ")[1:]]
    for hook in ("arcpp_model_profile", "arcpp_plan", "arcpp_plan_made", "arcpp_open_link"):
        asked = [line for line in lines if f"arcpp: hook {hook}(" in line]
        assert len(asked) >= 2, hook  # by each of two stages
        assert all("asked example" in line for line in asked), asked
    assert any("link_timeout=77.0" in line for line in lines)


TWO_MINDS = """
import os
from dataclasses import replace
from arcpp import hookimpl
from arcpp.planner import make_plan
@hookimpl
def arcpp_plan(profile, devices, request):
    try:
        os.close(os.open(os.environ["TWO_MINDS"], os.O_CREAT | os.O_EXCL))
        counts = (2, 6)
    except FileExistsError:
        counts = (3, 5)
    return make_plan(profile, devices, replace(request, partition=counts))
"""


def _refusal(env: dict[str, str], *arguments: str) -> str:
    """The last line of a server that does not start."""
    server = VllmServer(HYBRID_MODEL, *SMALL, *arguments, env=env, preloaded=True)
    try:
        assert server.process.wait(400) == 1
    finally:
        server.kill()
    lines = [line for line in server.text().splitlines() if line.startswith("arcpp: error: ")]
    assert len(lines) == 1, server.text()[-3000:]
    assert "Traceback" not in server.text()
    server.clean_up()
    return lines[0]


def test_stages_that_plan_differently_do_not_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    install(monkeypatch, tmp_path, "arcpp_two_minds", TWO_MINDS)
    env = {"PYTHONPATH": str(tmp_path / "arcpp-two-minds"), "TWO_MINDS": str(tmp_path / "first")}
    line = _refusal(env)
    assert "the stages disagree on the plan: stage 0 " in line
    assert "2,6 (" in line
    assert "3,5 (" in line


def test_a_broken_plugin_is_named_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    install(
        monkeypatch, tmp_path, "arcpp_broken", TWO_MINDS.replace("def arcpp_plan", "def arcpp_plam")
    )
    line = _refusal({"PYTHONPATH": str(tmp_path / "arcpp-broken")})
    assert "plugin arcpp-broken 1.2.3: cannot be loaded: there is no hook arcpp_plam" in line


def test_a_misspelt_setting_is_named_before_anything_starts() -> None:
    line = _refusal({}, "--additional-config", '{"arcpp": {"link_timout": 3}}')
    assert "'link_timout' is no setting of arcpp; did you mean link_timeout?" in line
