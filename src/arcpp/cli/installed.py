"""Commands of other packages, under the entry point group ``arcpp.commands``.

The core knows none of them: the adapters bring theirs, and whoever else is installed. They are
listed by name and loaded when they are asked for, so that ``arcpp plan`` imports no engine.
"""

from __future__ import annotations

from importlib import metadata

import click

from arcpp.errors import PluginError

GROUP = "arcpp.commands"


class Commands(click.Group):
    """The core's commands, and installed ones; the core's win."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names, sorted."""
        return sorted({*super().list_commands(ctx), *_installed()})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, loaded; None where there is none. Raises PluginError for one that cannot
        be loaded."""
        own = super().get_command(ctx, cmd_name)
        entry = None if own is not None else _installed().get(cmd_name)
        return own if entry is None else _loaded(entry)


def _installed() -> dict[str, metadata.EntryPoint]:
    found = sorted(metadata.entry_points(group=GROUP), key=lambda entry: entry.value)
    return {entry.name: entry for entry in reversed(found)}


def _loaded(entry: metadata.EntryPoint) -> click.Command:
    name = "unknown" if entry.dist is None else entry.dist.name
    version = "unknown" if entry.dist is None else entry.dist.version
    try:
        command = entry.load()
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        raise PluginError(name, version, f"command {entry.name}: {said}") from error
    if not isinstance(command, click.Command):
        raise PluginError(name, version, f"command {entry.name}: {entry.value} is no command")
    return command
