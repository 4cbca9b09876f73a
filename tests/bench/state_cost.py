"""What it costs to hand out recurrent state, beside a step of the recurrence that uses it.

A hybrid's layers in small (12 layers, 16 heads of 64 x 64, float32, convolution of 4), one token
of one request on the processor. Zero place: nothing is written. Zeroed: the slot's place is filled
in every layer. Proven: filled and read back. Guard: the zero place is read, once for all slots.
Times are medians, ratios those of a run; a request is handed out once, and then takes a step for
each token.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

_LAYERS, _HEADS, _SIZE, _WIDTH, _SLOTS, _ROUNDS = 12, 16, 64, 4, 8, 101


def table() -> list[str]:
    """The table as markdown lines."""
    import torch

    from arcpp.backends.torch_state import TorchTables
    from arcpp.link.frame import TensorSpec
    from arcpp.state import PoolSize, SlotPool, Start

    channels = 3 * _HEADS * _SIZE
    arrays = [
        array
        for layer in range(_LAYERS)
        for array in (
            TensorSpec(f"conv.{layer}", "float32", (channels, _WIDTH - 1)),
            TensorSpec(f"ssm.{layer}", "float32", (_HEADS, _SIZE, _SIZE)),
        )
    ]
    size = PoolSize(_SLOTS)
    pools = {
        start: SlotPool(TorchTables.allocate(arrays, size.places, "cpu"), size, start)
        for start in Start
    }
    token = torch.randn(channels)

    def step() -> None:
        """Window and matrix of every layer, read at the zero place and written at place 1."""
        tensors = pools[Start.ZEROED].tables.tensors  # type: ignore[attr-defined]
        for layer in range(_LAYERS):
            conv, ssm = tensors[f"conv.{layer}"], tensors[f"ssm.{layer}"]
            window = torch.cat([conv[0], token[:, None]], 1)
            q, k, v = torch.nn.functional.silu(window.sum(1)).view(3, _HEADS, _SIZE)
            state = ssm[0] * 0.9
            state += k[:, :, None] * (v - torch.einsum("hkv,hk->hv", state, k))[:, None]
            conv[1], ssm[1] = window[:, 1:], state
            torch.einsum("hkv,hk->hv", state, q)

    def lend(start: Start) -> Callable[[], None]:
        return lambda: pools[start].release(pools[start].acquire("request"))

    what = {"one step of the recurrence alone": step}
    what |= {f"acquire and release, {start.value}": lend(start) for start in Start}
    what["guard: check_integrity"] = pools[Start.ZERO_PLACE].check_integrity
    return rows(_medians(what))


def rows(seconds: dict[str, float]) -> list[str]:
    """Markdown lines; the first of ``seconds`` is what the others are compared with."""
    first = next(iter(seconds.values()))
    return [
        "| what | median us | of a step | of 100 steps |",
        "| --- | --- | --- | --- |",
        *(
            f"| {name} | {each * 1e6:.1f} | {each / first:.1%} | {each / first / 100:.2%} |"
            for name, each in seconds.items()
        ),
    ]


def _medians(what: dict[str, Callable[[], None]]) -> dict[str, float]:
    """Seconds of each, all in turns."""
    taken: dict[str, list[float]] = {name: [] for name in what}
    for _ in range(_ROUNDS):
        for name, use in what.items():
            begin = time.perf_counter()
            use()
            taken[name].append(time.perf_counter() - begin)
    return {name: statistics.median(each) for name, each in taken.items()}
