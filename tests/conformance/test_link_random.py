"""Ten thousand hops of random shapes, dtypes and layouts arrive bit by bit.

LINK_TEST_SEED repeats a run; the seed is in the output and in the error of what went wrong.
LINK_TEST_DEVICE as in test_link.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import pytest
from tests.support.link_kinds import NULL, PLAIN, SMALL, STREAMS, Kind
from tests.support.link_peers import Pairs
from tests.support.link_threads import run_both

from arcpp.link import Verification
from arcpp.link.ring import Geometry
from arcpp.testing import receive_random, send_random

pytest.importorskip("torch")

SEED = int(os.environ.get("LINK_TEST_SEED") or random.SystemRandom().getrandbits(32))
HOPS, FEWER_HOPS = 10_000, 1_000
#: The largest hops take several slots.
ROOMY = PLAIN.with_options(geometry=Geometry(4, 256 << 10))
LARGEST = 900 << 10
CHECKED = ROOMY.with_options(verification=Verification.DEVICE)
OTHERS = [kind.with_options(geometry=SMALL) for kind in (NULL, *STREAMS)]


@pytest.fixture(scope="module", name="pairs")
def _pairs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pairs]:
    pairs = Pairs(tmp_path_factory.mktemp("pairs"))
    yield pairs
    pairs.end()


def _between_processes(pairs: Pairs, kind: Kind, hops: int, largest: int) -> None:
    print(f"LINK_TEST_SEED={SEED}")
    pair = pairs.get(kind)
    pair.receiver.start(receive_random, pair.receiver.device, SEED, hops, largest)
    pair.sender.start(send_random, pair.sender.device, SEED, hops, largest)
    pair.receiver.result(patience=300)
    pair.sender.result()


def _between_threads(kind: Kind, hops: int, largest: int) -> None:
    print(f"LINK_TEST_SEED={SEED}")
    run_both(
        kind,
        lambda sender, device: send_random(sender, device, SEED, hops, largest),
        lambda receiver, device: receive_random(receiver, device, SEED, hops, largest),
    )


def test_ten_thousand_hops_between_processes(pairs: Pairs) -> None:
    _between_processes(pairs, ROOMY, HOPS, LARGEST)


def test_ten_thousand_hops_between_threads() -> None:
    _between_threads(ROOMY, HOPS, LARGEST)


@pytest.mark.parametrize("kind", [CHECKED, *OTHERS], ids=["verified", *map(str, OTHERS)])
def test_hops_by_other_ways_between_processes(pairs: Pairs, kind: Kind) -> None:
    _between_processes(pairs, kind, FEWER_HOPS, LARGEST // 4)


@pytest.mark.parametrize("kind", [CHECKED, *OTHERS], ids=["verified", *map(str, OTHERS)])
def test_hops_by_other_ways_between_threads(kind: Kind) -> None:
    _between_threads(kind, FEWER_HOPS, LARGEST // 4)
