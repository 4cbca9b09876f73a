"""``arcpp doctor``: is this machine ready, and if not, what to do about it.

facts          gathered from files, packages and child processes; a value
advice         facts -> findings, pure: hardware, software and links, one function per subject
compatibility  the table of hosts and versions, which docs/compatibility.md shows
copies         children that check copies, and what they say
report         findings as a table or one JSON object
redact         nothing in a report names a person, a machine or a serial
"""

from __future__ import annotations

from .advice import advise, exit_code
from .facts import Facts, gather
from .finding import Finding

__all__ = ["Facts", "Finding", "advise", "exit_code", "gather"]
