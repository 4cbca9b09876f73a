"""Tables of torch: what they refuse, memory they do not take, arrays a host owns."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.support.state_kinds import DEVICE  # noqa: E402

from arcpp.backends.torch_state import TorchTables, runs  # noqa: E402
from arcpp.link.frame import TensorSpec  # noqa: E402
from arcpp.state import PoolSize, SlotPool, Start  # noqa: E402

ARRAYS = (
    TensorSpec("conv.0", "bfloat16", (3, 640)),
    TensorSpec("ssm.0", "float32", (4, 32, 32)),
)


def _on(shape: tuple[int, ...], **changes: Any) -> torch.Tensor:
    return torch.zeros(shape, **({"device": DEVICE} | changes))


@pytest.mark.parametrize(
    "tensors",
    [
        {},
        {"a": _on((3, 2)), "b": _on((4, 2))},
        {"a": _on(())},
        {"a": _on((3, 0))},
        {"a": _on((3, 2), dtype=torch.complex64)},
        {"a": _on((3, 2), device="meta")},
        {"a": _on((3, 2)).to_sparse()},
    ],
    ids=["none", "other places", "no places", "no bytes", "complex", "no data", "sparse"],
)
def test_arrays_that_are_no_tables_are_refused(tensors: dict[str, torch.Tensor]) -> None:
    with pytest.raises(ValueError, match=r"array|places|bytes"):
        TorchTables(tensors)


def test_places_that_lie_together_are_filled_together() -> None:
    assert runs([5, 1, 2, 2, 0, 7]) == [(0, 3), (5, 1), (7, 1)]
    assert runs([]) == []


def test_arrays_of_a_host_are_used_where_they_are() -> None:
    mine = torch.full((4, 2), 3.0, device=DEVICE)
    TorchTables({"a": mine}).zero([1])
    assert mine.tolist() == [[3, 3], [0, 0], [3, 3], [3, 3]]


def _allocations(use: Any) -> int:
    """Allocations on the device while ``use`` runs."""
    if DEVICE == "cpu":
        with torch.profiler.profile(profile_memory=True) as profile:
            use()
        return sum(1 for event in profile.events() if event.self_cpu_memory_usage > 0)
    stats = torch.get_device_module(DEVICE).memory_stats
    before = stats(DEVICE)["allocation.all.allocated"]
    use()
    return int(stats(DEVICE)["allocation.all.allocated"] - before)


@pytest.mark.parametrize("start", [Start.ZERO_PLACE, Start.ZEROED], ids=lambda start: start.value)
def test_nothing_is_allocated_once_the_pool_is_made(start: Start) -> None:
    size = PoolSize(slots=3, drafts=2, snapshots=1)
    pool = SlotPool(TorchTables.allocate(ARRAYS, size.places, DEVICE), size, start)

    def requests() -> None:
        for turn in range(20):
            slot = pool.acquire(turn)
            pool.step(slot)
            pool.checkpoint(slot, 2)
            pool.accept(slot, 1)
            kept = pool.snapshot(slot)
            pool.release(slot)
            pool.release(pool.restore(kept, "again"))
            pool.drop(kept)

    requests()
    assert _allocations(requests) == 0
    assert _allocations(lambda: torch.ones(9, device=DEVICE)) == 1, "it would not be seen"
