"""``arcpp bench``: how fast a boundary moves on this machine, beside what it could be.

request   what is to be measured: checked words of the command line; a value
pair      the two processes that measure, with a deadline, and nothing of them left behind
hops      run a request; figures with their ratios
report    figures as a table or one JSON object
"""

from __future__ import annotations

from .hops import Figure, HopReport, measure_hops
from .request import HopRequest, hop_request

__all__ = ["Figure", "HopReport", "HopRequest", "hop_request", "measure_hops"]
