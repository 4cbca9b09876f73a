"""What a decode step over two stages took, in figures and on the benchmark page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.bench import __main__ as page
from tests.bench import pipeline
from tests.support.pipeline import Found


def test_a_step_is_its_stages_the_hop_and_the_way_back() -> None:
    """Step 0 does not count; step 1 takes 10 ms: 4, a hop of 1, 3, and 2 back."""
    first = Found(began=[0.0, 1.0], ended=[0.5, 1.004], came=[0.9, 1.010])
    last = Found(began=[0.6, 1.005], ended=[0.8, 1.008])
    alone = Found(began=[0.0, 1.0], ended=[0.7, 1.006])
    found = pipeline.figures(alone, first, last, [1])
    assert found.pop("stages_s") == pytest.approx([0.004, 0.003])
    assert found == pytest.approx(
        {
            "step_s": 0.010,
            "sum_of_stages_s": 0.007,
            "hop_s": 0.001,
            "back_s": 0.002,
            "step_over_sum": 10 / 7,
            "one_process_step_s": 0.006,
        }
    )


@pytest.mark.parametrize(
    ("second", "name"), [("cuda:0", "one card"), ("cuda:1", "two cards")], ids=["one", "two"]
)
def test_figures_of_another_machine_become_a_section(
    second: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = {
        "dtype": "float32", "partition": [7, 5], "stages_s": [0.004, 0.003], "step_s": 0.0075,
        "hop_s": 0.0003, "back_s": 0.0002, "step_over_sum": 1.0714, "one_process_step_s": 0.0069,
        "requests": 10, "slots": 4, "tokens": 307, "steps": 99, "steps_measured": 53,
        "links": {"boundary": {"kind": "ring", "pinning": "registered", "notes": []}},
    }  # fmt: skip
    measured = {
        "arcpp": "1", "machine": {"processor": "P", "cores": 8}, "command": "the command",
        "versions": {"python": "3.12.3", "torch": "2.11.0"}, "runs": [run],
        "devices": [{"name": each, "card": "C"} for each in ("cuda:0", second)],
    }  # fmt: skip
    file, written = tmp_path / "measured.json", tmp_path / "benchmarks.md"
    file.write_text(json.dumps(measured))
    written.write_text("# Benchmarks\n")
    monkeypatch.setattr(page, "PAGE", written)
    assert pipeline.main(["--write", str(file)]) == 0
    text = written.read_text()
    assert f"## pipeline, {name}" in text
    assert "| float32 | 7,5 | 7.50 | 4.00 | 3.00 | 300 | 200 | 1.071 | 6.90 |" in text
    assert f"cuda:0 (C) and {second} (C)" in text
    assert "`the command`" in text
