"""Entry point: commands, and errors as one line with the exit code of the contract."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from arcpp._version import __version__
from arcpp.errors import ArcppError, DoesNotFit

from .doctor import doctor_command
from .plan import plan_command
from .plugins import plugins_command

OK, BAD_INPUT, NO_FIT = 0, 1, 2


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="arcpp", message="%(prog)s %(version)s")
def commands() -> None:
    """Serve a model too big for one Intel Arc card across several, through vLLM or OVMS."""


commands.add_command(doctor_command)
commands.add_command(plan_command)
commands.add_command(plugins_command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code.

    0: done. 1: bad input, one line on stderr. 2: the model does not fit, one line on stderr.
    """
    try:
        return _run(arguments)
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except DoesNotFit as error:
        return _fail(str(error), NO_FIT)
    except click.ClickException as error:
        return _fail(error.format_message(), BAD_INPUT)
    except ArcppError as error:
        return _fail(str(error), BAD_INPUT)
    except click.Abort:
        return 130


def _run(arguments: Sequence[str] | None) -> int:
    result = commands.main(
        args=None if arguments is None else list(arguments),
        prog_name="arcpp",
        standalone_mode=False,
    )
    return result if isinstance(result, int) else OK


def _fail(message: str, code: int) -> int:
    line = " ".join(message.split())
    sys.stderr.write(f"arcpp: {line}\n")
    return code
