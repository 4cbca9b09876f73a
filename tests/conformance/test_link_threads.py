"""Every way through a ring keeps the promises of ``arcpp.link.port`` between two threads."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
from tests.support.link_kinds import NULL, PLAIN, SMALL, STREAMS, VERIFIED, Kind
from tests.support.link_threads import run_both

from arcpp.link.ring import Geometry
from arcpp.testing import LINK_CASES, LinkCase

pytest.importorskip("torch")

WAYS = [
    PLAIN,
    replace(PLAIN, name="ring, verified", options=VERIFIED),
    replace(PLAIN, name="ring, two little slots").with_options(geometry=Geometry(2, 16 << 10)),
    NULL,
    *(kind.with_options(geometry=SMALL) for kind in STREAMS),
]


@pytest.mark.parametrize("kind", WAYS, ids=str)
@pytest.mark.parametrize("case", LINK_CASES, ids=str)
def test_promise(case: LinkCase, kind: Kind) -> None:
    run_both(kind, case.send, case.receive)


def test_the_suite_runs_on_virtual_devices_where_torch_is_not() -> None:
    script = (
        "import sys\n"
        "sys.modules['torch'] = None  # importing it fails\n"
        "from arcpp.link import open_ring_pair\n"
        "from arcpp.testing import LINK_CASES, NullStaging, run_in_threads\n"
        "for case in LINK_CASES:\n"
        "    stagings = NullStaging('null:0'), NullStaging('null:0')\n"
        "    run_in_threads(case, *open_ring_pair('a', *stagings), 'null:0')\n"
        "print(len(LINK_CASES))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{len(LINK_CASES)}\n", "")
