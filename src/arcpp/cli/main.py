"""Entry point: commands, and errors as one line with the exit code of the contract."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence

import click

from arcpp._version import __version__
from arcpp.errors import ArcppError, DoesNotFit

from .bench import bench_command
from .doctor import doctor_command
from .installed import Commands
from .plan import plan_command
from .plugins import plugins_command
from .usage import refusal_of

OK, BAD_INPUT, NO_FIT = 0, 1, 2


@click.group(
    cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(__version__, prog_name="arcpp", message="%(prog)s %(version)s")
def commands() -> None:
    """Serve a model too big for one Intel Arc card across several, through vLLM or OVMS."""


commands.add_command(bench_command)
commands.add_command(doctor_command)
commands.add_command(plan_command)
commands.add_command(plugins_command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code.

    0: done. 1: bad input, one line on stderr. 2: the model does not fit, one line on stderr.
    """
    try:
        code = _run(arguments)
        sys.stdout.flush()
        return code
    except (OSError, UnicodeEncodeError) as error:  # a full disk, a closed pipe, an old encoding
        return _unwritten(error)
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.ClickException as error:
        return _fail(refusal_of(error), BAD_INPUT)
    except ArcppError as error:
        return _fail(str(error), NO_FIT if isinstance(error, DoesNotFit) else BAD_INPUT)
    except click.Abort:
        return 130


def _run(arguments: Sequence[str] | None) -> int:
    try:
        result = commands.main(
            args=None if arguments is None else list(arguments),
            prog_name="arcpp",
            standalone_mode=False,
        )
    except click.exceptions.NoArgsIsHelpError as asked:  # a command without its own: help
        click.echo(asked.format_message(), err=True)
        return BAD_INPUT
    except MemoryError:  # under a limit (ulimit -v, a container's)
        message = "memory: this process may not have enough for what it was given; raise its limit"
        raise click.ClickException(message) from None
    return result if isinstance(result, int) else OK


def _unwritten(error: OSError | UnicodeEncodeError) -> int:
    """The answer could not be written; what is left of it must not be tried again at exit. An
    error that names a file is of that file instead."""
    if isinstance(error, OSError) and error.filename is not None:
        return _fail(f"{error.filename}: {error.strerror or type(error).__name__}", BAD_INPUT)
    if isinstance(error, UnicodeEncodeError):
        why = f"{sys.stdout.encoding} cannot write {error.object[error.start : error.end]!r}"
    else:
        why = error.strerror or type(error).__name__
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return _fail(f"output: {why}", BAD_INPUT)


def _fail(message: str, code: int) -> int:
    line = " ".join(message.split())
    sys.stderr.write(f"arcpp: {line}\n")
    return code
