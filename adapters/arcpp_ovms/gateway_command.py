"""``arcpp gateway``: the front door with an engine behind it."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import click

from arcpp.errors import BadInput

_NEEDS = "is needed: pip install arcpp[openvino,gateway]"


@click.command("gateway")
@click.argument("model", type=click.Path(path_type=Path))
@click.option(
    "--device",
    "devices",
    multiple=True,
    default=("CPU",),
    show_default=True,
    help="OpenVINO's name of a device (GPU.0, GPU.1, CPU), one per stage, in order.",
)
@click.option("--partition", help="Layers per stage, such as 30,34. Planned where not given.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    default=8000,
    show_default=True,
    help="Port to listen on.",
)
@click.option("--name", help="The model's name to clients; its folder's where not given.")
@click.option("--max-model-len", type=int, help="Tokens of one request at most.")
@click.option(
    "--max-num-seqs",
    type=int,
    default=8,
    show_default=True,
    help="Requests that run at once; others wait.",
)
@click.option(
    "--max-waiting",
    type=int,
    default=256,
    show_default=True,
    help="Requests that wait; more are answered with status 429.",
)
@click.option(
    "--max-body",
    type=click.IntRange(1),
    default=4 << 20,
    show_default=True,
    help="Bytes of a request's body at most.",
)
@click.option(
    "--api-key-file",
    type=click.Path(path_type=Path),
    help="Clients must send the key in this file; none is asked for where not given.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    help="Seconds after which a request is cut short.",
)
@click.option("--precision", help="Of computation: f32, f16 or bf16; else the device's own.")
@click.option(
    "--cache-dir",
    type=click.Path(path_type=Path),
    help="Keep compiled stages here: the next start takes seconds.",
)
def gateway_command(
    model: Path, *, devices: tuple[str, ...], partition: str | None, **options: Any
) -> int:  # fmt: skip
    """Serve the OpenVINO model in folder MODEL to OpenAI clients, on one stage per --device.

    Under /v1 and /v3: models, chat/completions and completions, streamed or not; /health and
    /metrics. Listens on loopback only, unless told otherwise. SIGTERM lets running answers finish.
    """
    try:
        import uvicorn

        from arcpp_openvino import Engine, EngineOptions
        from arcpp_openvino.generate_command import counts
        from arcpp_openvino.options import ChainOptions

        from .gateway import GatewayOptions, make_app
    except ImportError as error:
        raise BadInput("arcpp gateway", error.name or str(error), _NEEDS) from None
    chain = ChainOptions(precision=options["precision"], cache_dir=options["cache_dir"])
    engine_options = EngineOptions(
        max_sequences=options["max_num_seqs"],
        max_waiting=options["max_waiting"],
        max_model_len=options["max_model_len"],
        chain=chain,
    )
    name = options["name"] or model.resolve().name
    gateway_options = GatewayOptions(
        name, _key(options["api_key_file"]), options["max_body"], options["timeout"]
    )
    with Engine.from_folder(model, devices, counts(partition), engine_options) as engine:
        for line in engine.describe():
            click.echo(line)
        config = uvicorn.Config(
            make_app(engine, gateway_options), host=options["host"], port=options["port"],
            log_level="info", timeout_graceful_shutdown=600, timeout_keep_alive=15,
        )  # fmt: skip
        server = uvicorn.Server(config)
        for number in (signal.SIGTERM, signal.SIGINT):  # uvicorn raises them anew when it is done
            signal.signal(number, _done_already)
        server.run()
        return 0 if server.started else 1


def _done_already(number: int, frame: object) -> None:
    """The server has stopped, as the signal asked; what is left is to close the engine."""


def _key(path: Path | None) -> str | None:
    """The key in the file ``path``. Raises BadInput where there is none."""
    if path is None:
        return None
    try:
        key = path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "is not text"
        raise BadInput("--api-key-file", str(path), f"cannot be read: {why}") from None
    if not key or any(character.isspace() for character in key):
        raise BadInput("--api-key-file", str(path), "does not hold a key: one line, one word")
    return key
