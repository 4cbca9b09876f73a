"""Options of ``arcpp plan``: one entry each, in the order of its help."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from arcpp.request import GOALS

Command = Callable[..., Any]

_HOST = "Default: vllm, of the version installed here, else of the newest that arcpp knows."

_OPTIONS: tuple[tuple[tuple[str, ...], dict[str, Any]], ...] = (
    (
        ("--device",),
        {
            "multiple": True,
            "metavar": "NAME=TOTAL[:FREE][@GBPS]",
            "help": "A card; repeat in stage order (or xpu:0, cpu: measured); default: all.",
        },
    ),
    (("--host",), {"metavar": "vllm[@VERSION]|openvino", "help": _HOST}),
    (("--partition",), {"metavar": "60,4", "help": "Layers per stage; default: the best."}),
    (
        ("--kv-memory",),
        {"metavar": "SIZE[,SIZE...]", "help": "Available KV memory per stage, as a log shows it."},
    ),
    (
        ("--gpu-memory-utilization",),
        {"type": float, "metavar": "0.92", "help": "As in vLLM."},
    ),
    (("--block-size",), {"type": int, "metavar": "N", "help": "As in vLLM."}),
    (("--mamba-cache-mode",), {"metavar": "none|align|all", "help": "As in vLLM."}),
    (("--max-model-len",), {"metavar": "N|auto", "help": "Default: the longest that fits."}),
    (("--max-num-seqs",), {"type": int, "metavar": "N", "help": "As in vLLM."}),
    (("--max-num-batched-tokens",), {"type": int, "metavar": "N", "help": "As in vLLM."}),
    (("--dtype",), {"help": "Activations: float16, bfloat16 or float32; default: the model's."}),
    (("--kv-cache-dtype",), {"default": "auto", "show_default": True, "help": "As in the host."}),
    (
        ("--weights-dtype",),
        {"help": "Size weights from the config in this format: fp8, int8, int4, mxfp4, float16."},
    ),
    (
        ("--spec-tokens",),
        {"type": int, "default": 0, "metavar": "N", "help": "Draft tokens per step (MTP)."},
    ),
    (
        ("--block-align",),
        {"type": int, "metavar": "N", "help": "Multiple a hybrid's block is rounded up to."},
    ),
    (
        ("--prefix-caching/--no-prefix-caching",),
        {"default": None, "help": "Default: as in the host's version."},
    ),
    (("--margin",), {"metavar": "SIZE", "help": "Left free on every card (256MiB)."}),
    (
        ("--reserve",),
        {"multiple": True, "metavar": "NAME=SIZE", "help": "Promised to others on a card."},
    ),
    (
        ("--maximize",),
        {
            "type": click.Choice(GOALS),
            "default": GOALS[0],
            "show_default": True,
            "metavar": "|".join(GOALS),
            "help": "What the best split has most of; decode keeps room for 8192 tokens or N.",
        },
    ),
    (
        ("--reorder",),
        {"is_flag": True, "help": "Try the cards in every order (720 that differ at most)."},
    ),
    (
        ("--large-allocations",),
        {"is_flag": True, "help": "OpenVINO: GPU_ENABLE_LARGE_ALLOCATIONS is on."},
    ),
    (("--explain",), {"is_flag": True, "help": "What binds, and what one layer more would do."}),
    (
        ("--svg",),
        {
            "type": click.Path(path_type=Path),
            "metavar": "FILE",
            "help": "Write a picture of the plan.",
        },
    ),
    (
        ("--from-log",),
        {
            "type": click.Path(path_type=Path),
            "metavar": "FILE",
            "help": "Compare with a vLLM start-up log; its options count where not given here.",
        },
    ),
    (("--json", "as_json"), {"is_flag": True, "help": "Print one JSON object."}),
)


def with_options(command: Command) -> Command:
    """``command`` with every option of ``arcpp plan``."""
    for names, settings in reversed(_OPTIONS):
        command = click.option(*names, **settings)(command)
    return command
