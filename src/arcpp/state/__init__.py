"""Recurrent state of linear-attention layers: bounded, preallocated, never read dirty.

``pool`` lends slots, ``ring`` moves within one slot, ``ledger`` knows what is lent, ``tables`` is
what a runtime that has arrays must offer; ``arcpp.backends`` implements it.
"""

from .handles import PoolSize, Slot, Snapshot, Start, Want, Window
from .pool import ZERO_PLACE, SlotPool
from .tables import StateTables

__all__ = [
    "ZERO_PLACE",
    "PoolSize",
    "Slot",
    "SlotPool",
    "Snapshot",
    "Start",
    "StateTables",
    "Want",
    "Window",
]
