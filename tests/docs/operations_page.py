"""Writes the tables of docs/operations.md: ``python -m tests.docs.operations_page``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from tests.bench.plan_pairs import A770, B60, B70, B580, devices, profile_of

from arcpp.devices import Device, DeviceMemory
from arcpp.memory.vllm import KvLayout
from arcpp.planner import PlanRequest, make_plan
from arcpp.profile import ModelProfile
from arcpp.stage_state import place_bytes, state_arrays
from arcpp.units import GiB, MiB

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operations.md"
MODELS = {
    "Qwen3.5, 3.6, 3.8 27B": "QWEN35_27B",
    "Qwen3.5, 3.6 35B-A3B": "QWEN35_35B",
    "Qwen3.5 122B-A10B": "QWEN35_122B",
    "Qwen3-Next 80B-A3B": "QWEN3_NEXT",
    "Nemotron 3.5 30B": "NEMOTRON",
    "Granite 4.0 H Small": "GRANITE",
}
ONE = [Device("a card", DeviceMemory(1024 * GiB, 1024 * GiB))]
#: The mode with prefix caching, which is vLLM's default, and the one without.
MODES = {"align": True, "none": False}
PAIRS = {
    "2x A770": (A770, A770),
    "B70 + B580": (B70, B580),
    "B60 + A770": (B60, A770),
    "3x B580": (B580, B580, B580),
}
SPLIT = {"27B int4": "QWEN35_27B", "35B-A3B int4": "QWEN35_35B"}
LENGTHS = (8192, 32768)


def cost_table() -> list[str]:
    """What one request's state takes, by model and host."""
    lines = [
        "| model | recurrent layers | one state | vLLM, `none` | vLLM, `align` | `none`, 3 drafts "
        "| OpenVINO | KV of a token | `align` is as much as |",
        "| --- " * 9 + "|",
    ]
    for label, name in MODELS.items():
        profile = profile_of(name, "bfloat16")
        count = sum(1 for layer in profile.layers if layer.state is not None)
        everything = (0, len(profile.layers))
        vllm = [_vllm(profile, mode) for mode in MODES]
        drafts = _mib(_vllm(profile, "none", 3)) if profile.mtp_layers else "-"
        openvino = place_bytes(state_arrays(profile, *everything, columns=1, dtype="float32"))
        gated = profile.delta is not None  # what OpenVINO has a paged form for
        token = sum(layer.kv.elements for layer in profile.layers if layer.kv is not None) * 2
        cells = [
            label,
            f"{count} of {len(profile.layers)}",
            _mib(place_bytes(state_arrays(profile, *everything))),
            *map(_mib, (vllm[1], vllm[0])),
            drafts,
            _mib(openvino) if gated else "-",
            f"{token / 1024:.0f} KiB",
            f"{vllm[0] // token:,} tokens",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def fit_table() -> list[str]:
    """How many requests run at once on pairs of cards."""
    lines = [
        "| cards | model | mode | blocks | for one request's state | requests at once, at most | "
        + " | ".join(f"of {length:,} tokens" for length in LENGTHS)
        + " |",
        "| --- " * (6 + len(LENGTHS)) + "|",
    ]
    for cards, pair in PAIRS.items():
        for label, name in SPLIT.items():
            profile = profile_of(name, "int4")
            for mode in MODES:
                cells = [cards, label, f"`{mode}`", *_fits(profile, devices(pair), mode)]
                lines.append(f"| {' | '.join(cells)} |")
    return lines


def _fits(profile: ModelProfile, cards: list[Device], mode: str) -> Iterator[str]:
    request = _request(mode)
    plan, layout = make_plan(profile, cards, request), request.layout(profile, cards)
    yield f"{plan.num_blocks:,} of {plan.block_tokens:,} tokens"
    yield f"{plan.state_blocks_per_request} blocks"
    yield f"{plan.max_num_seqs}"
    for length in LENGTHS:
        yield f"{(plan.num_blocks - plan.null_blocks) // layout.blocks_per_request(length)}"


def _request(mode: str) -> PlanRequest:
    return PlanRequest(
        kv_cache_dtype="fp8",
        dtype="float16",
        mamba_cache_mode=mode,
        prefix_caching=MODES[mode],
    )


def _vllm(profile: ModelProfile, mode: str, drafts: int = 0) -> int:
    """Bytes of the blocks that vLLM gives one request for state, over all layers."""
    request = replace(_request(mode), kv_cache_dtype="auto", spec_tokens=drafts)
    layout = request.layout(profile, ONE)
    assert isinstance(layout, KvLayout)
    return layout.state_blocks() * layout.bytes_per_block(0, 0, len(profile.layers))


def _mib(size: int) -> str:
    return f"{size / MiB:.1f} MiB"


def long_request(mode: str) -> tuple[int, int]:
    """27B at 192k tokens on two A770 with 7 GiB of cache between them: blocks there are, and
    blocks that one request takes."""
    request = replace(_request(mode), max_model_len=196608, kv_memory=(int(3.5 * GiB),) * 2)
    plan = make_plan(profile_of("QWEN35_27B", "int4"), devices(PAIRS["2x A770"]), request)
    return plan.num_blocks, plan.blocks_per_request


TABLES = {"cost": cost_table, "fit": fit_table}


def renewed(text: str) -> str:
    """``text`` of the page with the tables as they should be."""
    for name, table in TABLES.items():
        marked = re.compile(rf"(?<=<!-- {name} -->\n).*?(?=<!-- end of {name} -->)", re.DOTALL)
        lines = "\n".join(table()) + "\n"
        text = marked.sub(lambda _match, lines=lines: lines, text)  # type: ignore[misc]
    return text


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
