"""Requests at once and tokens in a step: what vLLM refuses is neither planned nor advised."""

from __future__ import annotations

from typing import Any

import pytest

from arcpp.cli import main
from arcpp.errors import BadInput, DoesNotFit
from arcpp.planner import Planning, PlanRequest, make_plan
from arcpp.profile import load_profile
from arcpp.refusal import nearest_setting
from arcpp.units import GiB, MiB

from .planner_models import BUNDLED
from .test_plan import device


@pytest.mark.parametrize(("sequences", "tokens"), [(9, 8), (2049, None), (257, 256), (10**6, 2048)])
def test_more_requests_than_tokens_of_a_step_are_refused(
    sequences: int, tokens: int | None
) -> None:
    with pytest.raises(BadInput, match=r"--max-num-seqs: \d+ is more than the \d+ tokens"):
        PlanRequest(max_num_seqs=sequences, max_num_batched_tokens=tokens)
    PlanRequest(host="openvino", max_num_seqs=sequences, max_num_batched_tokens=tokens)


@pytest.mark.parametrize(("tokens", "sequences"), [(None, 256), (2048, 256), (256, 256), (7, 7)])
def test_requests_at_once_default_to_what_a_step_has_tokens_for(
    tokens: int | None, sequences: int
) -> None:
    assert PlanRequest(max_num_batched_tokens=tokens).sequences == sequences


def test_refusal_on_the_command_line_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["plan", str(BUNDLED), "--device", "A=1GiB", "--max-num-batched-tokens", "64"]
    assert main([*arguments, "--max-num-seqs", "65"]) == 1
    assert "--max-num-batched-tokens 65 or more" in capsys.readouterr().err
    assert main([*arguments, "--max-num-seqs", "64"]) == 0


@pytest.mark.parametrize("sequences", [None, 16, 300, 513, 2000, 4096])
@pytest.mark.parametrize("size", range(20, 220, 20))
def test_advice_is_a_request_that_is_not_refused(sequences: int | None, size: int) -> None:
    """Whatever is short: what the message says to write makes a plan."""
    profile = load_profile(BUNDLED)
    cards = [device("a", size * MiB), device("b", size * MiB)]
    request = PlanRequest(max_num_seqs=sequences, max_num_batched_tokens=4096, max_model_len=2048)
    try:
        make_plan(profile, cards, request)
    except DoesNotFit as error:
        advice = error.nearest
    else:
        return
    if advice is None:
        return
    words = advice.split()
    changed: dict[str, Any] = {"max_num_seqs": sequences, "max_num_batched_tokens": 4096}
    for name, value in zip(words[::2], words[1::2], strict=True):
        whole = int(value) if value.isdigit() else value
        changed[name.removeprefix("--").replace("-", "_")] = whole
    fraction = float(changed.pop("gpu_memory_utilization", 0.92))
    changed = {"max_model_len": 2048, "gpu_memory_utilization": fraction, **changed}
    make_plan(profile, cards, PlanRequest(**changed))


def test_fewer_tokens_are_advised_down_to_the_requests_asked_for() -> None:
    profile = load_profile(BUNDLED)
    request = PlanRequest(max_num_seqs=600, max_num_batched_tokens=2**20, kv_cache_dtype="bfloat16")
    planning = Planning(profile, (device("a", GiB),), request)
    assert nearest_setting(planning) == "--max-num-batched-tokens 600"
