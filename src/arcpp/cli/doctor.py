"""``arcpp doctor``: is this machine ready, and what to do if it is not."""

from __future__ import annotations

import json

import click


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def doctor_command(as_json: bool) -> int:
    """Look at devices, drivers, versions and limits, and check copies between devices.

    May take half a minute or more: whatever may hang runs in child processes with a deadline. The
    report leaves out user, host and home and shortens serials, to be pasted. Exit code 0:
    fine; 2: there is advice; 1: something is broken.
    """
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
