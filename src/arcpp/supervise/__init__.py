"""Surviving faults: what happened (``fault``, ``classify``, ``patterns``), how long to wait
(``deadline``), whether to start again (``restart``), and which request may be the cause
(``suspects``).

Nothing here starts, kills or waits for anything: adapters do, and ask.
"""

from .classify import classify
from .deadline import Deadline, StepDeadline
from .fault import Fault, FaultAction, FaultKind, root_cause
from .restart import Decision, RestartPolicy
from .suspects import Suspects

__all__ = [
    "Deadline",
    "Decision",
    "Fault",
    "FaultAction",
    "FaultKind",
    "RestartPolicy",
    "StepDeadline",
    "Suspects",
    "classify",
    "root_cause",
]
