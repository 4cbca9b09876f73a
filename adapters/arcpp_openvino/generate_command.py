"""``arcpp generate``: one prompt through the OpenVINO engine."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from arcpp.errors import BadInput

_NEEDS = "needs openvino and openvino-genai: pip install arcpp[openvino]"


@click.command("generate")
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("prompt")
@click.option(
    "--device",
    "devices",
    multiple=True,
    default=("CPU",),
    show_default=True,
    help="OpenVINO's name of a device (GPU.0, GPU.1, CPU), one per stage, in order.",
)
@click.option("--partition", help="Layers per stage, such as 30,34. Planned where not given.")
@click.option("--chat", is_flag=True, help="Ask as a user's message, in the model's chat template.")
@click.option("--max-tokens", type=int, default=128, show_default=True, help="Of output, at most.")
@click.option("--temperature", type=float, default=0.0, show_default=True, help="0 is greedy.")
@click.option("--top-p", type=float, default=1.0, show_default=True, help="Likeliest share kept.")
@click.option("--top-k", type=int, default=0, show_default=True, help="Likeliest kept; 0 for all.")
@click.option("--seed", type=int, help="Of the draw, where temperature is above 0.")
@click.option("--precision", help="Of computation: f32, f16 or bf16; else the device's own.")
@click.option("--kv-cache-precision", help="u8, u4, f16, bf16 or f32; else the device's own.")
@click.option(
    "--cache-dir",
    type=click.Path(path_type=Path),
    help="Keep compiled stages here: the next start takes seconds.",
)
@click.option("--json", "as_json", is_flag=True, help="One object instead of streamed text.")
def generate_command(
    model: Path,
    prompt: str,
    *,
    devices: tuple[str, ...],
    partition: str | None,
    chat: bool,
    as_json: bool,
    **options: Any,
) -> int:  # fmt: skip
    """Continue PROMPT with the OpenVINO model in folder MODEL, on one stage per --device.

    The text streams to standard output. A prompt of "-" is read from standard input.
    """
    try:
        from .engine import Engine, EngineOptions
        from .options import ChainOptions
        from .sampling import Sampling
    except ImportError as error:
        raise BadInput("arcpp generate", error.name or str(error), _NEEDS) from None
    chain_options = {
        name: options.pop(name) for name in ("precision", "kv_cache_precision", "cache_dir")
    }
    sampling = Sampling(**options)
    text = sys.stdin.read() if prompt == "-" else prompt
    engine_options = EngineOptions(max_sequences=1, chain=ChainOptions(**chain_options))
    with Engine.from_folder(model, devices, counts(partition), engine_options) as engine:
        asked = [{"role": "user", "content": text}] if chat else text
        if as_json:
            click.echo(json.dumps(asdict(engine.generate(asked, sampling))))
            return 0
        for piece in engine.stream(asked, sampling):
            click.echo(piece.text, nl=False)
        click.echo()
    return 0


def counts(partition: str | None) -> tuple[int, ...] | None:
    """Layers per stage as ``--partition`` has them. Raises BadInput."""
    if partition is None:
        return None
    try:
        return tuple(int(count) for count in partition.split(","))
    except ValueError:
        raise BadInput("--partition", partition, "is not layers per stage, such as 30,34") from None
