"""Writes docs/cli.md from the commands themselves: ``python -m tests.docs.cli_page``."""

from __future__ import annotations

from pathlib import Path

import click

from arcpp.cli.main import commands

PAGE = Path(__file__).resolve().parents[2] / "docs" / "cli.md"
_HEAD = """# Commands

Written by `python -m tests.docs.cli_page`; a test fails when it is stale. Sizes: an integer is
bytes; KiB, MiB and GiB are binary, KB, MB and GB decimal. Tables are in GiB, JSON is in bytes.
"""


def page() -> str:
    """The whole page."""
    parts = [_HEAD]
    for name in sorted(commands.commands):
        command = commands.commands[name]
        says = " ".join((command.help or "").split())
        parts.append(f"## `arcpp {name}`\n{says}\n")
        options = [p for p in command.params if isinstance(p, click.Option)]
        if options:
            rows = [f"| {_names(option)} | {_text(option.help)} |" for option in options]
            parts.append("\n".join(["| option | |", "| --- | --- |", *rows]) + "\n")
    return "\n".join(parts)


def _names(option: click.Option) -> str:
    names = "/".join([*option.opts, *option.secondary_opts])
    shown = "" if option.is_flag else f" {option.metavar or option.name or ''}"
    return f"`{names}{_text(shown.upper() if option.metavar is None else shown)}`"


def _text(text: str | None) -> str:
    return (text or "").replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
