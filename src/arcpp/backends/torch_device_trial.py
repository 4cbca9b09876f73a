"""Child process: open a device, compute on it, allocate on it, wait for memory to be free.

``python -m arcpp.backends.torch_device_trial xpu:0 BYTES`` exits 0 with ``{"free": bytes}`` as its
last line when the device works, as soon as BYTES are free or half a minute has passed. Whoever
starts it sets the deadline: a wedged device hangs here.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

_SIZE = 256  # of the matrices that are multiplied
_BYTES = 64 << 20
_LOOKS, _PAUSE_S = 120, 0.25  # a driver gives a dead process's memory back within seconds


def main(device: str, needed: int = 0) -> None:
    """Raises what torch raises, and RuntimeError for a device that computes or stores wrong, or
    does not have ``needed`` bytes free within half a minute."""
    import torch

    from .torch_devices import synchronize, trial_allocation

    place = torch.device(device)
    ones = torch.ones(_SIZE, _SIZE, device=place)
    product = ones @ ones
    synchronize(torch, place)
    if float(product.min()) != _SIZE or float(product.max()) != _SIZE:
        raise RuntimeError(f"{device} multiplies wrongly")
    trial = trial_allocation(place, _BYTES)
    if trial.got < _BYTES:
        raise RuntimeError(f"{device} gives no memory: {trial.reason}")
    free = None
    if place.type != "cpu":
        free = settled(lambda: int(getattr(torch, place.type).mem_get_info(place)[0]), needed)
    print(json.dumps({"free": free}))


def settled(
    free: Callable[[], int], needed: int, sleep: Callable[[float], None] = time.sleep
) -> int:
    """Bytes free as soon as they are ``needed``, or at the last look."""
    for _ in range(_LOOKS):
        if free() >= needed:
            break
        sleep(_PAUSE_S)
    return free()


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
