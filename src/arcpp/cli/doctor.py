"""``arcpp doctor``: is this machine ready, and what to do if it is not."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from arcpp.errors import BadInput


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--garble",
    metavar="URL",
    help="Look at the text of the vLLM server there instead, beside --reference.",
)
@click.option(
    "--reference",
    type=click.Path(path_type=Path),
    help="Prompts and right answers, as tests/models/kjv-hybrid-8l/reference.json has them.",
)
def doctor_command(as_json: bool, garble: str | None, reference: Path | None) -> int:
    """Look at devices, drivers, versions and limits, and check copies between devices.

    May take half a minute or more: whatever may hang runs in child processes with a deadline. The
    report leaves out user, host and home and shortens serials, to be pasted. Exit code 0:
    fine; 2: there is advice; 1: something is broken.
    """
    if (garble is None) != (reference is None):
        raise BadInput("--garble", garble or "", "and --reference go together")
    if garble is not None and reference is not None:
        return _text_of(garble, reference, as_json)
    from arcpp.doctor import advise, exit_code, gather
    from arcpp.doctor.redact import Redactor
    from arcpp.doctor.report import report_json, report_text

    facts = gather()
    findings = advise(facts)
    code = exit_code(findings)
    if as_json:
        click.echo(json.dumps(report_json(facts, findings, code, Redactor())))
    else:
        click.echo(report_text(facts, findings, Redactor()))
    return code


def _text_of(url: str, reference: Path, as_json: bool) -> int:
    """Exit code: 0 where the server's text is the reference's, 1 where it is garbled."""
    from arcpp.doctor.ask import answers
    from arcpp.doctor.garble import ROUNDING, compare, read_sheet

    sheet = read_sheet(reference)
    right = sheet.references
    found = compare(right, answers(url, sheet), rounding=ROUNDING, expected=sheet.perplexity)
    if as_json:
        click.echo(json.dumps(asdict(found) | {"garbled": found.garbled}))
    else:
        click.echo(f"{'garbled' if found.garbled else 'not garbled'}: {found}")
    return 1 if found.garbled else 0
