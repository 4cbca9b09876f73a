"""What is wrong with a command line, in the words of arcpp's other refusals."""

from __future__ import annotations

import click
from click.exceptions import BadParameter, NoSuchOption, UsageError

from arcpp.nearest import nearest


def refusal_of(error: click.ClickException) -> str:
    """One line: the option or command, what is wrong, and the one that was probably meant."""
    context = error.ctx if isinstance(error, UsageError) else None
    if isinstance(error, NoSuchOption):
        right = f"is no option of {_path(context)}{nearest(error.option_name, _options(context))}"
        return f"{error.option_name}: {right}"
    name = getattr(error, "command_name", None)  # from click 8.4
    if name is not None and context is not None and isinstance(context.command, click.Group):
        known = context.command.list_commands(context)
        says = f"is no command of {_path(context)} ({', '.join(known)}){nearest(name, known)}"
        return f"{name!r} {says}"
    if isinstance(error, BadParameter) and isinstance(error.param, click.Option):
        return f"{error.param.opts[0]}: {error.message.rstrip('.')}{_meant(error)}"
    return error.format_message()


def _path(context: click.Context | None) -> str:
    return "arcpp" if context is None else context.command_path


def _options(context: click.Context | None) -> list[str]:
    if context is None:
        return []
    found = (p for p in context.command.get_params(context) if isinstance(p, click.Option))
    return [name for option in found for name in (*option.opts, *option.secondary_opts)]


def _meant(error: BadParameter) -> str:
    """The choice that was probably meant, where there are choices."""
    assert error.param is not None
    kind, quoted = error.param.type, error.message.split("'")
    if not isinstance(kind, click.Choice) or len(quoted) < 3:
        return ""
    return nearest(quoted[1], [str(choice) for choice in kind.choices])
