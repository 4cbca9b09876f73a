"""What a refusal advises is tried as it is written: it fits, and no part of it can be left out."""

from __future__ import annotations

import contextlib
import io
import re
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from arcpp.cli import main
from arcpp.devices import Device, DeviceMemory
from arcpp.planner import Planning, PlanRequest
from arcpp.profile import load_profile
from arcpp.refusal import _changes
from arcpp.units import GiB

from .planner_models import BUNDLED

CHOICES = {
    "--max-model-len": ["4096", "32768"],
    "--margin": ["4MiB", "12MiB"],
    "--reserve": ["a=3MiB", "a=20MiB"],
    "--host": ["openvino", "vllm@0.23", "vllm@0.32"],
    "--gpu-memory-utilization": ["0.5", "0.8", "1"],
    "--max-num-seqs": ["4", "64", "300"],
    "--max-num-batched-tokens": ["300", "1024", "8192"],
    "--spec-tokens": ["0", "2"],
    "--kv-memory": ["1MiB", "3MiB"],
    "--kv-cache-dtype": ["auto"],
}


@st.composite
def commands(draw: st.DrawFn) -> list[str]:
    """A command that may not fit: small cards, hungry options."""
    written = []
    stages = draw(st.integers(1, 3))
    for name in "abc"[:stages]:
        written += ["--device", f"{name}={draw(st.integers(12, 70))}MiB"]
    for option, values in CHOICES.items():
        if draw(st.integers(0, 3)) == 0:
            written += [option, draw(st.sampled_from(values))]
    if draw(st.integers(0, 4)) == 0:
        written += ["--partition", {1: "8", 2: "7,1", 3: "1,6,1"}[stages]]
    return written


def outcome(arguments: list[str]) -> tuple[int, str]:
    err = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(err):
        code = main(["plan", str(BUNDLED), *arguments, "--json"])
    return code, err.getvalue()


def parts_of(advice: str) -> list[list[str]]:
    """Each setting of ``advice`` as its words."""
    return [part.split() for part in re.split(r"(?<!without) (?=--|without )", advice)]


def followed(arguments: list[str], parts: list[list[str]]) -> list[str]:
    """``arguments`` as somebody would change them who does what ``parts`` say."""
    for words in parts:
        name = words[1] if words[0] == "without" else words[0]
        while name in arguments:
            at = arguments.index(name)
            arguments = arguments[:at] + arguments[at + 2 :]
        arguments = arguments + (words if words[0] != "without" else [])
    return arguments


def test_advice_fits_when_it_is_followed() -> None:
    seen: Counter[int] = Counter()

    @settings(max_examples=150, deadline=None, derandomize=True)
    @given(commands())
    def tried(written: list[str]) -> None:
        code, err = outcome(written)
        if code == 2:
            seen[check(written, err)] += 1

    tried()
    assert seen[0] > 5
    assert seen[1] > 5
    assert sum(number for parts, number in seen.items() if parts > 1) > 5


def test_what_is_tried_is_what_is_advised() -> None:
    """Options of the command and fields of the request have the same names."""
    cards = (Device("a", DeviceMemory(GiB, GiB)),)
    tried = {}
    for host in ("vllm", "openvino"):
        request = PlanRequest(
            host=host, max_model_len=9, partition=(8,), margin=1, reserves={"a": 1},
            spec_tokens=1, max_num_seqs=99, max_num_batched_tokens=4096,
        )  # fmt: skip
        for change in _changes(Planning(load_profile(BUNDLED), cards, request)):
            words = change.text.split()
            option = words[1] if words[0] == "without" else words[0]
            ((name, value),) = change.changes.items()
            assert option.removeprefix("--").replace("-", "_") in (name, f"{name}s", name[:-1])
            tried[option] = (words[-1], value)
    for option, (text, value) in tried.items():
        if option in ("--margin", "--reserve"):
            assert not value
        elif option not in ("--max-model-len", "--partition", "--large-allocations"):
            assert text == str(value)
    assert len(tried) == 10


def check(written: list[str], err: str) -> int:
    """How many settings ``err`` advises to change, after they were."""
    assert re.search(r"stage \d+ \(.*\) lacks [\d.]+ GiB \(\d+ bytes\)", err)
    _, found, advice = err.strip().partition("; nearest that fits: ")
    if not found:
        assert err.endswith("; no nearby setting fits\n")
        return 0
    parts = parts_of(advice)
    changed = followed(written, parts)
    assert outcome(changed) == (0, "")
    for part in parts:
        fewer = [other for other in parts if other is not part]
        # A length is the longest for all of the others together.
        if not any("--max-model-len" in other for other in fewer):
            assert outcome(followed(written, fewer))[0] != 0, part
    for name, value in (part for part in parts if part[0] == "--max-model-len"):
        if value != "32768":  # the model's own
            longer = followed(written, [*parts, [name, str(int(value) + 1)]])
            assert outcome(longer)[0] == 2
    return len(parts)
