"""For debugging: does anybody write past the end of recurrent state?

Symptom: state read or written past its end garbles a neighbour's text, and nothing fails. vLLM
0.32 makes state pages as large as attention pages (MambaSpec.page_size_padded), so bytes follow a
state that nobody owns. Here a pattern is kept in them (`state_canary`), in the newest block of
every request of a step, and looked at after the next: every step waits for the device. Can go
with ``state_guard``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from vllm.logger import init_logger

from arcpp.errors import StateCorrupt

logger = init_logger("vllm.arcpp.state")

_PATTERN = 0xA5
_BYTES = 4096  # of a page, at the most, right behind the state


class Canary:
    """Of one stage. watched: index of a cache group -> the bytes behind its layers' states,
    by layer, [blocks, bytes]; groups whose states fill their pages are not in it."""

    def __init__(self, watched: Mapping[int, Mapping[str, torch.Tensor]]) -> None:
        self.watched = watched
        self._armed: dict[tuple[str, int], int] = {}

    @staticmethod
    def over(layers: Mapping[str, Any], groups: Sequence[Any]) -> Canary:
        """Behind the states of ``layers`` (name -> MambaBase); groups: vLLM's, of caches.

        Says how many layers there is room behind.
        """
        watched = {}
        for number, group in enumerate(groups):
            page = group.kv_cache_spec.page_size_bytes
            here = [name for name in group.layer_names if name in layers]
            parts = {name: behind(layers[name].kv_cache, page) for name in here}
            watched[number] = {name: part for name, part in parts.items() if part is not None}
        logger.info(
            "arcpp: canaries behind the states of %d of %d recurrent layers of this stage",
            *(sum(map(len, watched.values())), len(layers)),
        )
        return Canary({number: parts for number, parts in watched.items() if parts})

    def arm_all(self, newest: Mapping[tuple[str, int], int]) -> None:
        """``arm`` for each block by request and group."""
        for (request, group), block in newest.items():
            self.arm(request, group, block)

    def arm(self, request: str, group: int, block: int) -> None:
        """``block`` is ``request``'s newest from now on: put the pattern behind its states."""
        if group in self.watched:
            for behind in self.watched[group].values():
                behind[block].fill_(_PATTERN)
            self._armed[request, group] = block

    def settle(self, newest: Mapping[tuple[str, int], int]) -> None:
        """Raise StateCorrupt where the pattern is gone, then arm what is new.

        newest: block by request and group, of the requests of the step that ended. Nothing is
        known of the others: their blocks may be another's by now.
        """
        kept = {key: block for key, block in newest.items() if self._armed.get(key) == block}
        self._armed, found = {}, []
        for (request, group), block in kept.items():
            for layer, behind in self.watched[group].items():
                if not bool((behind[block] == _PATTERN).all()):
                    found.append(f"{layer} of request {request}: block {block} is written past")
            self._armed[request, group] = block
        if found:
            raise StateCorrupt(tuple(found))
        self.arm_all({key: block for key, block in newest.items() if key not in kept})


def behind(arrays: Sequence[torch.Tensor], page: int) -> torch.Tensor | None:
    """The bytes behind a layer's states in each of its pages, [blocks, bytes]; None if there
    are none.

    arrays: the layer's, [blocks, ...] each, one after the other in each page of ``page`` bytes.
    """
    first = arrays[0]
    used = sum(math.prod(array.shape[1:]) * array.element_size() for array in arrays)
    size = min(page - used, _BYTES)
    if size <= 0:
        return None
    start = first.storage_offset() * first.element_size() + used
    stride = first.stride(0) * first.element_size()
    raw = torch.empty(0, dtype=torch.uint8, device=first.device)
    return raw.set_(first.untyped_storage(), start, (first.shape[0], size), (stride, 1))
