"""Copy checks: a corrupting, a failing and a real copier; children that hang."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from arcpp.backends.torch_copies import SIZES, TorchCopier, check_copies
from arcpp.doctor.copies import check_devices, understood
from arcpp.probe.child import HUNG, OK, SILENT, Outcome
from arcpp.units import KiB, MiB


class Bytes:
    """A copier over bytes; one device may corrupt or refuse a size."""

    def __init__(self, *, corrupts: tuple[int, int] = (-1, 0), fails: int = 0) -> None:
        self.corrupts, self.fails = corrupts, fails
        self.moves: list[tuple[str, int]] = []

    def put(self, size: int, seed: int) -> Any:
        return bytes((index * seed) % 251 for index in range(64)) * (size // 64) + b"x" * (
            size % 64
        )

    def room(self, size: int) -> Any:
        return bytearray(size)

    def to_device(self, place: int, host: Any) -> Any:
        self.moves.append(("to device", place))
        if len(host) == self.fails:
            raise RuntimeError("Native API returns: 39\\n(UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)")
        if (place, len(host)) == self.corrupts:
            return bytes([host[0] ^ 1]) + bytes(host[1:])
        return bytes(host)

    def to_host(self, place: int, device: Any, room: Any) -> Any:
        self.moves.append(("to host", place))
        room[:] = device
        return room

    def wrong_bytes(self, host: Any, wanted: Any) -> int:
        return sum(a != b for a, b in zip(host, wanted, strict=True))


SMALL = (4 * KiB, 4 * KiB + 1)


def test_sizes_cover_the_classes_and_odd_ones() -> None:
    assert (min(SIZES), max(SIZES)) == (4 * KiB, 64 * MiB)
    assert any(size % 2 for size in SIZES)
    assert 16 * KiB in SIZES


def test_every_copy_arrives_whole() -> None:
    copies = check_copies(Bytes(), "xpu", 0, [1, 2], SMALL)
    assert [copy.path for copy in copies[::2]] == [
        ("xpu:0",), ("xpu:0", "xpu:1"), ("xpu:0", "xpu:2"),
    ]  # fmt: skip
    assert all(copy.wrong_bytes == 0 and copy.error is None for copy in copies)


def test_pairs_go_through_host_memory() -> None:
    copier = Bytes()
    check_copies(copier, "xpu", 0, [1], SMALL[:1])
    pair = list(dict.fromkeys(copier.moves[6:]))
    assert pair == [("to device", 0), ("to host", 0), ("to device", 1), ("to host", 1)]


def test_a_corrupting_copy_is_caught_at_its_size() -> None:  # compute-runtime#942
    copies = check_copies(Bytes(corrupts=(1, 4 * KiB + 1)), "xpu", 0, [1], SMALL)
    assert [copy.wrong_bytes for copy in copies] == [0, 0, 0, 1]


def test_a_failing_copy_is_told_and_others_go_on() -> None:  # error 39 on a 16 KB copy
    copies = check_copies(Bytes(fails=4 * KiB), "xpu", 0, [], SMALL)
    assert [copy.error is None for copy in copies] == [False, True]
    assert "39" in str(copies[0].error)
    assert "\n" not in str(copies[0].error)


def test_with_the_real_torch_on_the_cpu() -> None:
    torch = pytest.importorskip("torch")
    copies = check_copies(TorchCopier(torch, "cpu"), "cpu", 0, [], (4 * KiB + 1, MiB))
    assert [copy.wrong_bytes for copy in copies] == [0, 0]
    assert all(copy.to_device_s and copy.to_host_s for copy in copies)


def answer(wrong: int = 0, error: str | None = None) -> Outcome:
    copies = [
        {"path": ["xpu:0"], "size": size, "wrong_bytes": wrong, "to_device_s": 1e-3,
         "to_host_s": 2e-3, "error": error}
        for size in SMALL
    ]  # fmt: skip
    trial = {"asked": 1, "got": 1, "reason": None, "free_moved": True}
    return Outcome(OK, {"trial": trial, "single_allocation": True, "copies": copies})


def test_an_answer_becomes_paths_with_bandwidths() -> None:
    (path,) = understood("xpu:0", answer()).paths
    assert (path.path, path.sizes, path.wrong, path.errors) == (("xpu:0",), 2, (), {})
    assert (path.to_device_gb_s, path.to_host_gb_s) == (round(4097 / 1e-3 / 1e9, 2), 0.0)
    assert understood("xpu:0", answer(wrong=3)).paths[0].wrong == SMALL
    assert understood("xpu:0", answer(error="lost")).paths[0].errors == dict.fromkeys(SMALL, "lost")


@pytest.mark.parametrize("data", [{}, {"copies": 3}, {"copies": [{}], "trial": {}}])
def test_an_answer_of_another_form_is_none(data: dict[str, Any]) -> None:
    assert understood("xpu:0", Outcome(OK, data)).outcome.status == SILENT


def test_each_device_is_a_child_towards_all_others_of_its_kind() -> None:
    asked: list[list[str]] = []

    def run(arguments: Sequence[str]) -> Outcome:
        asked.append(list(arguments))
        return answer() if len(asked) != 2 else Outcome(HUNG, {}, "gave no answer")

    checks = check_devices(["xpu:0", "xpu:2", "cuda:0"], run)
    assert asked == [["xpu", "0", "2"], ["xpu", "2", "0"], ["cuda", "0"]]
    assert [check.outcome.status for check in checks] == [OK, HUNG, OK]
    asked.clear()
    check_devices([], run)
    assert asked == [["cpu", "0"]]
