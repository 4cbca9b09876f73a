"""Writes docs/cli.md from the commands themselves: ``python -m tests.docs.cli_page``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from arcpp.cli.main import commands

PAGE = Path(__file__).resolve().parents[2] / "docs" / "cli.md"
_HEAD = """# Commands

Written by `python -m tests.docs.cli_page`; a test fails when it is stale. Sizes: an integer is
bytes; KiB, MiB and GiB are binary, KB, MB and GB decimal. Tables are in GiB, JSON is in bytes.

Names of devices carry meaning: the same name twice is one card with two stages, which share its
memory; two cards of one kind need two names (B580-a, B580-b). `cpu` and `cpu:0` are the processor,
`xpu:1`, `cuda:0` and `GPU.0` without `=` that card of this machine, as measured.

Other packages bring commands too, as click commands under the entry point group `arcpp.commands`;
`arcpp generate` comes that way, with the OpenVINO engine (`pip install arcpp[openvino]`).
"""


def page() -> str:
    """The whole page."""
    parts = [_HEAD]
    for name, command in every_command():
        says = " ".join((command.help or "").split())
        parts.append(f"## `arcpp {name}`\n{says}\n")
        options = [p for p in command.params if isinstance(p, click.Option)]
        if options:
            rows = [f"| {_names(option)} | {_text(option.help)} |" for option in options]
            parts.append("\n".join(["| option | |", "| --- | --- |", *rows]) + "\n")
    return "\n".join(parts)


def every_command(group: click.Group = commands, before: str = "") -> Iterator[tuple[str, Any]]:
    """Commands by name, those of groups ("bench hop") in the place of the group."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from every_command(command, f"{before}{name} ")
        else:
            yield f"{before}{name}", command


def _names(option: click.Option) -> str:
    names = "/".join([*option.opts, *option.secondary_opts])
    shown = "" if option.is_flag else f" {option.metavar or option.name or ''}"
    return f"`{names}{_text(shown.upper() if option.metavar is None else shown)}`"


def _text(text: str | None) -> str:
    return (text or "").replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
