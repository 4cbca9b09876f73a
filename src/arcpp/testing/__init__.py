"""What people who write a link or state tables, or something that uses them, need to test it.

**Conformance.** Every promise of ``arcpp.link.port`` is a case with two halves, one for each end.
Open a pair, run both halves at the same time, each where its end lives (a process or a thread),
and let an exception fail your test::

    @pytest.mark.parametrize("case", LINK_CASES, ids=str)
    def test_my_link(case):
        sender, receiver = open_my_link()
        run_in_threads(case, sender, receiver)

A pair serves one case: some of them end with a link that is unusable, as promised. What needs a
peer to be killed or stopped cannot be done from here; ``expect_*`` are the halves that watch, and
tests/conformance of the repository shows them at work. ``send_random`` and ``receive_random`` are
the halves of any number of random hops.

**Devices.** Tensors lie on a device that a half is given by name: torch's ("cpu", "xpu:0"; torch is
imported when a half runs), or a virtual one ("null:0"), for which nothing is needed but Python.
``NullStaging`` is the virtual device behind a ring, ``NullFault`` what goes wrong on it, and
``meddle`` lets a hop be announced wrongly::

    sending = NullStaging("null:0", [NullFault.by_seed(Wrong.CORRUPTS, seed, hops=100)])
    sender, receiver = open_ring_pair("my link", sending, NullStaging("null:1"))

**State.** Every promise of ``arcpp.state``, on tables of your runtime, is a case too; it is given
what makes them::

    @pytest.mark.parametrize("case", STATE_CASES, ids=str)
    def test_my_tables(case):
        case.run(lambda arrays, places: MyTables(arrays, places))

``run_requests`` is any number of random requests through a pool beside an oracle, ``OraclePool``
the two for requests of your own. ``NullTables`` need nothing but Python, and ``FaultyTables`` are
any tables with a ``StateFault`` that is due: they fail halfway, vanish, forget or corrupt.
"""

from __future__ import annotations

from arcpp.backends.null_faults import NullDeviceLost, NullFault, Wrong
from arcpp.backends.null_meddling import Meddling, meddle
from arcpp.backends.null_staging import NullStaging
from arcpp.backends.null_state import (
    FaultyTables,
    NullStateFailed,
    NullTables,
    StateFault,
    StateWrong,
)
from arcpp.backends.null_tensor import NullTensor

from .kit import Kit, kit_for
from .link_cases import LINK_CASES, LinkCase, run_in_threads
from .random_hops import receive_random, send_random
from .state_cases import STATE_CASES
from .state_oracle import MakeTables, OraclePool, run_requests
from .state_table_cases import StateCase
from .watch import (
    expect_deadline_when_nobody_receives,
    expect_deadline_when_nobody_sends,
    expect_loss_while_receiving,
    expect_loss_while_sending,
    fault_of,
)

__all__ = [
    "LINK_CASES",
    "STATE_CASES",
    "FaultyTables",
    "Kit",
    "LinkCase",
    "MakeTables",
    "Meddling",
    "NullDeviceLost",
    "NullFault",
    "NullStaging",
    "NullStateFailed",
    "NullTables",
    "NullTensor",
    "OraclePool",
    "StateCase",
    "StateFault",
    "StateWrong",
    "Wrong",
    "expect_deadline_when_nobody_receives",
    "expect_deadline_when_nobody_sends",
    "expect_loss_while_receiving",
    "expect_loss_while_sending",
    "fault_of",
    "kit_for",
    "meddle",
    "receive_random",
    "run_in_threads",
    "run_requests",
    "send_random",
]
