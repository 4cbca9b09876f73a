"""``arcpp plugins``: who implements which hook."""

from __future__ import annotations

import json

import click

from arcpp.hooks import hooks_for
from arcpp.settings import read_settings


@click.command("plugins")
def plugins_command() -> int:
    """List every implementation of every hook, with its package and version, as JSON.

    Implementations of one hook are in the order in which they are asked. A plugin that cannot be
    used is one line on stderr and exit code 1.
    """
    plugins = hooks_for(read_settings()).plugins
    found = [one.to_json() for one in plugins.implementations()]
    click.echo(json.dumps({"implementations": found}, indent=2))
    return 0
