"""Drafts taken back leave no trace: a real recurrence gives straight decoding, bit by bit."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.support.gated_delta import GatedDelta, prefill, straight  # noqa: E402

from arcpp.backends.torch_state import TorchTables  # noqa: E402
from arcpp.state import PoolSize, SlotPool, Start  # noqa: E402

PROMPT, LENGTH, MOST = 5, 40, 4
DTYPES = [torch.float32, torch.float64]


def _pool(layer: GatedDelta, size: PoolSize, start: Start = Start.ZERO_PLACE) -> SlotPool:
    tables = TorchTables.allocate(layer.arrays, size.places, "cpu")
    for tensor in tables.tensors.values():
        tensor.fill_(float("nan"))  # whatever reads what was not written shows at once
    return SlotPool(tables, size, start)


def _tokens(dtype: torch.dtype, seed: int) -> torch.Tensor:
    made = torch.Generator().manual_seed(seed)
    return torch.randn(LENGTH, 6, generator=made, dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("drafts", range(1, MOST + 1))
@pytest.mark.parametrize("fused", [True, False], ids=["with a sure token", "drafts alone"])
def test_accepting_any_number_equals_straight_decoding(
    dtype: torch.dtype, drafts: int, fused: bool
) -> None:
    """A step verifies ``drafts`` tokens, of which the first ``accepted`` are those of the text.

    fused: the token sampled last goes before them in the same run, as hosts do it.
    """
    layer, text = GatedDelta(dtype), _tokens(dtype, 1)
    wanted = straight(layer, text)
    for accepted in range(drafts + 1):
        pool = _pool(layer, PoolSize(1, drafts))
        slot = pool.acquire("request")
        found = [prefill(layer, pool, slot, text[:PROMPT])]
        at = PROMPT
        while at + drafts + 1 <= LENGTH:
            sure = 1 if fused or accepted == 0 else 0
            wrong = _tokens(dtype, 1000 + at)[: drafts - accepted]
            run = torch.cat([text[at : at + sure + accepted], wrong])
            first = pool.step(slot) if sure else None
            window = pool.checkpoint(slot, drafts)
            writes = [*(first.writes if first else ()), *window.writes]
            outputs = layer.run(pool.tables, (first or window).read, writes, run)
            pool.accept(slot, accepted)
            found.append(outputs[: sure + accepted])
            at += sure + accepted
        pool.check_integrity()
        assert torch.equal(torch.cat(found), wanted[:at])


@pytest.mark.parametrize("start", Start, ids=lambda start: start.value)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_requests_in_turns_equal_each_alone(dtype: torch.dtype, start: Start) -> None:
    """Three slots, nine requests, one token of each in turn, some restored from a snapshot."""
    layer, size = GatedDelta(dtype), PoolSize(slots=3, drafts=2, snapshots=1)
    pool = _pool(layer, size, start)
    prefix = _tokens(dtype, 0)[:PROMPT]
    slot = pool.acquire("prefix")
    prefill(layer, pool, slot, prefix)
    kept = pool.snapshot(slot)
    pool.release(slot)
    for batch in range(3):
        owners = range(3 * batch, 3 * batch + 3)
        texts = {owner: torch.cat([prefix, _tokens(dtype, owner)]) for owner in owners}
        slots = {o: pool.restore(kept, o) if o % 2 else pool.acquire(o) for o in owners}
        found = {o: [] if o % 2 else [prefill(layer, pool, slots[o], prefix)] for o in owners}
        for at in range(PROMPT, PROMPT + LENGTH):
            for owner in owners:
                one = prefill(layer, pool, slots[owner], texts[owner][at : at + 1])
                found[owner].append(one)
        for owner in owners:
            wanted = straight(layer, texts[owner])[PROMPT if owner % 2 else 0 :]
            assert torch.equal(torch.cat(found[owner]), wanted)
            pool.release(slots[owner])
        pool.check_integrity()


def test_a_stale_state_shows() -> None:
    """The comparison above can fail: the same text over a state that was left is another."""
    layer, text = GatedDelta(torch.float32), _tokens(torch.float32, 1)
    tables = TorchTables.allocate(layer.arrays, 1, "cpu")
    tables.zero([0])
    first = layer.run(tables, 0, [0] * LENGTH, text)
    again = layer.run(tables, 0, [0] * LENGTH, text)
    assert not torch.equal(first, again)
