"""The trial allocation: chunks, limits on single allocations, and figures that do not move."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from arcpp.backends.torch_devices import trial_allocation
from arcpp.units import GiB, MiB

PLACE = SimpleNamespace(type="xpu", index=0)


class Memory:
    """A fake xpu of ``size`` bytes; single: largest allocation; moves: free figure is honest."""

    def __init__(self, size: int, *, single: int = 2**62, moves: bool = True) -> None:
        self.size, self.single, self.moves, self.held = size, single, moves, 0
        self.largest = 0
        self.corrupt = False

    def empty(self, count: int, **_: Any) -> Any:
        if count > self.single:
            raise RuntimeError("UR_RESULT_ERROR_INVALID_BUFFER_SIZE")
        if self.held + count > self.size:
            raise MemoryError("XPU out of memory")
        return Tensor(self, count)

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def info(index: int) -> tuple[int, int]:
            return self.size - (self.held if self.moves else 0), self.size

        xpu = SimpleNamespace(
            mem_get_info=info, synchronize=lambda place: None, empty_cache=lambda: None
        )
        torch = SimpleNamespace(
            xpu=xpu, empty=self.empty, uint8="uint8", device=lambda place: place
        )
        monkeypatch.setitem(sys.modules, "torch", torch)  # type: ignore[arg-type]


class Tensor:
    def __init__(self, memory: Memory, count: int) -> None:
        self.memory, self.count = memory, count
        memory.held += count
        memory.largest = max(memory.largest, count)

    def fill_(self, value: int) -> Tensor:
        self.value = value
        return self

    def __getitem__(self, index: int) -> int:
        return 0 if self.memory.corrupt else self.value

    def __del__(self) -> None:
        self.memory.held -= self.count


def test_what_fits_is_held_in_chunks_and_released(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Memory(16 * GiB)
    memory.install(monkeypatch)
    trial = trial_allocation(PLACE, 12 * GiB)
    assert (trial.got, trial.reason, trial.free_moved) == (12 * GiB, None, True)
    assert memory.largest < 4 * GiB
    assert memory.held == 0


def test_what_does_not_fit_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Memory(8 * GiB + 100 * MiB)
    memory.install(monkeypatch)
    trial = trial_allocation(PLACE, 12 * GiB)
    assert 8 * GiB <= trial.got <= 8 * GiB + 100 * MiB
    assert trial.reason is not None
    assert "out of memory" in trial.reason
    assert memory.held == 0


def test_a_limit_on_single_allocations_does_not_look_like_missing_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    memory = Memory(16 * GiB, single=100 * MiB)
    memory.install(monkeypatch)
    assert trial_allocation(PLACE, 1 * GiB).got == 1 * GiB


def test_a_free_figure_that_does_not_move_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    Memory(16 * GiB, moves=False).install(monkeypatch)  # A770, compute-runtime#750
    assert trial_allocation(PLACE, 1 * GiB).free_moved is False


def test_memory_that_does_not_hold_what_was_written(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Memory(16 * GiB)
    memory.corrupt = True
    memory.install(monkeypatch)
    trial = trial_allocation(PLACE, 1 * GiB)
    assert trial.got == 0
    assert "did not hold" in str(trial.reason)


def test_a_lost_device_ends_the_trial_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Memory(16 * GiB)
    memory.install(monkeypatch)

    def lost(place: Any) -> None:
        raise RuntimeError("UR_RESULT_ERROR_DEVICE_LOST")

    monkeypatch.setattr(sys.modules["torch"].xpu, "synchronize", lost)  # type: ignore[attr-defined]
    trial = trial_allocation(PLACE, 1 * GiB)
    assert trial.got == 0
    assert "DEVICE_LOST" in str(trial.reason)


def test_on_the_cpu_with_the_real_torch() -> None:
    pytest.importorskip("torch")
    trial = trial_allocation("cpu", 64 * MiB, chunk=32 * MiB)
    assert (trial.asked, trial.got, trial.reason) == (64 * MiB, 64 * MiB, None)
