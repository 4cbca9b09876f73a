"""ChainOptions: how a chain of stages is compiled and how much it preallocates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from arcpp.errors import BadInput

PRECISIONS = ("f32", "f16", "bf16")
KV_PRECISIONS = ("u8", "u4", "f16", "bf16", "f32")


@dataclass(frozen=True)
class ChainOptions:
    """Options of :class:`.chain.Chain`. None: from the plan where it says one, else the default.

    kv_blocks: KV blocks of every stage, of ``ChainProfile.block_size`` tokens. state_blocks: places
    of the state tables, the zero block (place 0) among them; of no account in dense models.
    max_sequences: requests in a step at most. max_batch_tokens: tokens in a step at most, for which
    the boundary's buffers are made. microbatches: steps in flight at once. precision: of
    computation (INFERENCE_PRECISION_HINT). kv_cache_precision: one of KV_PRECISIONS.
    cache_dir: where compiled stages are kept (OpenVINO 2026.4's CPU plugin does not
    read back those with attention layers). max_model_len: tokens one request must be able to
    have, for the plan. margin: bytes left free on every device. check_finite: look for logits that
    are not finite after every step. properties: of OpenVINO, by
    device name, and under "" for all devices; they win over everything else here.
    """

    kv_blocks: int | None = None
    state_blocks: int | None = None
    max_sequences: int | None = None
    max_batch_tokens: int = 2048
    microbatches: int = 1
    precision: str | None = None
    kv_cache_precision: str | None = None
    cache_dir: Path | None = None
    max_model_len: int | None = None
    margin: int | None = None
    check_finite: bool = True
    properties: Mapping[str, Mapping[str, object]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        least = {
            "kv_blocks": 1,
            "state_blocks": 2,
            "max_sequences": 1,
            "max_batch_tokens": 1,
            "microbatches": 1,
        }
        for name, low in least.items():
            value = getattr(self, name)
            if value is not None and value < low:
                raise BadInput(name, value, f"is too few: {low} at least")
        _one_of("precision", self.precision, PRECISIONS)
        _one_of("kv_cache_precision", self.kv_cache_precision, KV_PRECISIONS)

    def config(self, device: str) -> dict[str, object]:
        """Properties a stage is compiled with on ``device``."""
        found: dict[str, object] = {"PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": 1}
        if self.precision is not None:
            found["INFERENCE_PRECISION_HINT"] = self.precision
        if self.kv_cache_precision is not None:
            found["KV_CACHE_PRECISION"] = self.kv_cache_precision
        if self.cache_dir is not None:
            found["CACHE_DIR"] = str(self.cache_dir)
        return {**found, **self.properties.get("", {}), **self.properties.get(device, {})}


def _one_of(what: str, value: str | None, allowed: tuple[str, ...]) -> None:
    if value is not None and value not in allowed:
        raise BadInput(what, value, f"is not one of {', '.join(allowed)}")
