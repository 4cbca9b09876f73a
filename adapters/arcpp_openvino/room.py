"""Whether the tables of a chain fit in the processor's memory, before any is allocated.

A plan looks at this too, but blocks may be given without one, and a processor's memory does not
refuse: it is the kernel that ends the process later. Cards refuse by themselves.
"""

from __future__ import annotations

from collections.abc import Sequence

from arcpp.errors import DoesNotFit
from arcpp.probe.host_memory import cpu_reading
from arcpp.units import format_gib

from .stage import CompiledStage
from .tables import table_bytes


def check_room(stages: Sequence[CompiledStage], blocks: Sequence[int], state_blocks: int) -> None:
    """Raises DoesNotFit where tables of stages on the processor need more than is free.

    blocks: KV blocks of each stage. Where free memory is not known nothing is checked.
    """
    free = cpu_reading().free
    if free is None:
        return
    needed, kv = 0, 0
    first = None
    for stage, count in zip(stages, blocks, strict=True):
        if stage.device != "CPU":
            continue
        first = stage.index if first is None else first
        needed += table_bytes(stage.shapes(count, state_blocks))
        kv += table_bytes(stage.shapes(count, 0))
    if needed <= free:
        return
    fit = (free - (needed - kv)) * max(blocks) // kv if kv else 0
    nearest = f"kv_blocks={fit}" if fit > 0 else None
    raise DoesNotFit(
        f"stage {first} on CPU: KV and state tables of {format_gib(needed)} do not fit into "
        f"{format_gib(free)} of free memory" + (f"; {nearest} would" if nearest else ""),
        stage=first,
        device="CPU",
        missing_bytes=needed - free,
        nearest=nearest,
    )
