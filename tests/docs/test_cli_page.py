"""Every command and option is documented, as it is."""

from __future__ import annotations

import click
from tests.docs.cli_page import PAGE, every_command, page


def test_the_page_is_not_stale() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run python -m tests.docs.cli_page"


def test_every_option_says_what_it_is_for() -> None:
    for name, command in every_command():
        for option in command.params:
            if isinstance(option, click.Option):
                assert option.help, f"arcpp {name} {option.opts[0]}"
                assert option.opts[0] in PAGE.read_text(encoding="utf-8")
