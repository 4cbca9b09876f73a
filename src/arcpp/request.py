"""PlanRequest: every option of a plan, with the host's defaults filled in."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .devices import AllocationLimit, Device
from .errors import BadInput
from .memory.layout import CacheLayout
from .memory.openvino import ALLOCATION_CAP, PagedLayout, Place
from .memory.placement import DROPPED
from .memory.versions import NEWEST, VllmVersion, vllm_version
from .memory.vllm import KvLayout, KvOptions
from .profile.dtypes import model_dtype
from .profile.model import LINEAR, MAMBA, ModelProfile
from .units import MiB

__all__ = ["DROPPED", "GOALS", "PlanRequest"]

#: Of a GPU whose driver was not asked.
OPENVINO_LIMIT = AllocationLimit(ALLOCATION_CAP, "usual without GPU_ENABLE_LARGE_ALLOCATIONS")
GOALS = ("context", "concurrency", "decode")


@dataclass(frozen=True)
class PlanRequest:
    """Options of ``arcpp plan`` and of the worker. None: the host's default.

    host, version: ``vllm`` and its version, or ``openvino``. partition: layers per stage.
    kv_memory: available KV bytes per stage (one value serves all), which replaces budgets.
    max_model_len: tokens; None, "auto" or -1 for the longest that fits. margin: bytes left free
    on every device; reserves: device name -> bytes promised to others, on top of the device's
    own. dropped_roles: duplicates the worker does not keep (empty: stock vLLM). platform: xpu,
    cuda or cpu; None: by the devices' names. ssm_dtype: ``--mamba-ssm-cache-dtype``. maximize:
    one of GOALS. large_allocations: OpenVINO's GPU_ENABLE_LARGE_ALLOCATIONS is on. inside_host:
    asked from inside the host, so that advice names its options instead of ``arcpp plan``'s. brief:
    a refusal need not look for what would fit, because nobody reads it.
    """

    host: str = "vllm"
    version: str | None = None
    partition: tuple[int, ...] | None = None
    kv_memory: tuple[int, ...] | None = None
    gpu_memory_utilization: float | None = None
    block_size: int | None = None
    mamba_cache_mode: str | None = None
    max_model_len: int | str | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    dtype: str | None = None
    kv_cache_dtype: str = "auto"
    spec_tokens: int = 0
    block_align: int | None = None
    prefix_caching: bool | None = None
    margin: int | None = None
    reserves: Mapping[str, int] = field(default_factory=dict)
    dropped_roles: frozenset[str] = DROPPED
    platform: str | None = None
    ssm_dtype: str | None = None
    maximize: str = "context"
    large_allocations: bool = False
    inside_host: bool = False
    brief: bool = False

    def __post_init__(self) -> None:
        if self.maximize not in GOALS:
            raise BadInput("--maximize", self.maximize, f"is not one of {', '.join(GOALS)}")
        if self.host not in ("vllm", "openvino"):
            raise BadInput("--host", self.host, "is not vllm or openvino")
        if self.margin is not None and self.margin < 0:
            raise BadInput("--margin", self.margin, "is negative")
        tokens = self.batched_tokens
        if self.host == "vllm" and self.sequences > tokens:
            right = (
                f"is more than the {tokens} tokens of a step, which vLLM refuses: lower it or "
                f"write --max-num-batched-tokens {self.sequences} or more"
            )
            raise BadInput("--max-num-seqs", self.sequences, right)

    @property
    def sequences(self) -> int:
        """Most requests that run at once, as asked for.

        By default 4 in OpenVINO, whose state tables are allocated for all of them, and 256 in
        vLLM, or as many as a step has tokens where those are fewer (config/scheduler.py; its other
        bound, the model's length, is for models without chunked prefill: no decoders)."""
        default = min(256, self.batched_tokens) if self.host == "vllm" else 4
        return _positive("--max-num-seqs", self.max_num_seqs, default)

    @property
    def fewest_tokens(self) -> int:
        """Tokens of a step below which the requests asked for are refused."""
        return (self.max_num_seqs or 1) if self.host == "vllm" else 1

    @property
    def batched_tokens(self) -> int:
        """Most tokens in a step (vLLM's server default 2048)."""
        return _positive("--max-num-batched-tokens", self.max_num_batched_tokens, 2048)

    def wanted_length(self, profile: ModelProfile) -> int | None:
        """Tokens one request must be able to have, or None for as many as fit."""
        asked = self.max_model_len
        if asked is None or asked in (-1, "auto"):
            return None
        if isinstance(asked, bool) or not isinstance(asked, int) or asked < 1:
            raise BadInput("--max-model-len", asked, "is not a number of tokens, auto or -1")
        if asked > profile.max_model_len:
            right = f"is more than the model's own {profile.max_model_len} tokens"
            raise BadInput("--max-model-len", asked, right)
        return asked

    def budget(self, device: Device) -> int:
        """Bytes arcpp may use on ``device``; may be negative."""
        memory = device.memory
        kept = memory.reserve + self.reserves.get(device.name, 0) + self.margin_of(device)
        limit = memory.free - kept
        if self.host == "vllm":
            limit = min(limit, math.ceil(memory.total * self._utilization()))
        return limit

    def margin_of(self, device: Device) -> int:
        """Bytes left free on ``device``: 256 MiB, on small devices a 32nd of the total."""
        if self.margin is None:
            return min(256 * MiB, device.memory.total // 32)
        return self.margin

    def _utilization(self) -> float:
        asked = self.gpu_memory_utilization
        if asked is None:
            return self.vllm().gpu_memory_utilization
        if not 0 < asked <= 1:
            raise BadInput("--gpu-memory-utilization", asked, "is not above 0 and at most 1")
        return asked

    def vllm(self) -> VllmVersion:
        """Rules of the vLLM version asked for."""
        return vllm_version(self.version or NEWEST)

    def layout(self, profile: ModelProfile, devices: Sequence[Device]) -> CacheLayout:
        """The cache arithmetic of the host asked for. Raises BadInput."""
        if self.host == "vllm":
            return KvLayout(profile, self.kv_options(profile, devices))
        self._check_drafts(profile)
        return PagedLayout(
            profile,
            precision=self.kv_cache_dtype,
            places=[self._place(device) for device in devices],
            spec_tokens=self.spec_tokens,
        )

    def allocation_limit(self, device: Device) -> AllocationLimit | None:
        """Largest single allocation on ``device`` under this host, or None."""
        if device.is_cpu or self.platform == "cpu":
            return None
        if self.host == "vllm":
            return device.allocation_limit
        return None if self.large_allocations else device.allocation_limit or OPENVINO_LIMIT

    def _place(self, device: Device) -> Place:
        limit = self.allocation_limit(device)
        on_cpu = device.is_cpu or self.platform == "cpu"
        return Place(on_cpu, None if limit is None else limit.size)

    def _check_drafts(self, profile: ModelProfile) -> None:
        if self.spec_tokens < 0 or self.spec_tokens > 64:
            raise BadInput("--spec-tokens", self.spec_tokens, "is not between 0 and 64")
        if self.spec_tokens and not profile.mtp_layers:
            raise BadInput("--spec-tokens", self.spec_tokens, "but this model has no draft layers")

    def kv_options(self, profile: ModelProfile, devices: Sequence[Device]) -> KvOptions:
        """The cache options vLLM would run ``profile`` with. Raises BadInput."""
        version = self.vllm()
        platform = self.platform or _platform(devices)
        dtype = profile.dtype if self.dtype is None else model_dtype(self.dtype, "--dtype")
        block, kernel = _blocks(platform, _on_triton(profile, dtype), version)
        align = 64 if platform == "xpu" and any(x.kind == LINEAR for x in profile.layers) else 1
        caching = self.caching(profile)
        mamba2 = any(layer.kind == MAMBA for layer in profile.layers)
        batches = self._batches(platform, len(devices), version)
        self._check_drafts(profile)
        return KvOptions(
            version=version,
            dtype=dtype,
            kv_cache_dtype=self.kv_cache_dtype,
            block_size=_positive("--block-size", self.block_size, block),
            kernel_block=kernel,
            block_align=_positive("--block-align", self.block_align, align),
            prefix_caching=caching,
            mamba_cache_mode=self._mamba_mode(version, caching, mamba2),
            spec_tokens=self.spec_tokens,
            in_flight_tokens=self.batched_tokens * batches,
            checkpoint_blocks=version.mamba2_checkpoint_blocks if mamba2 else 0,
            ssm_dtype=self.ssm_dtype,
        )

    def _batches(self, platform: str, stages: int, version: VllmVersion) -> int:
        """Batches whose tokens a window keeps: one per stage; on a single card two, because
        vLLM schedules the next while one runs (max_concurrent_batches in config/vllm.py), which
        its CPU platform and arcpp's executor do not."""
        if not version.windows_keep_all_in_flight:
            return 1
        alone = stages == 1 and platform != "cpu" and not self.inside_host
        return 2 if alone else stages

    def caching(self, profile: ModelProfile) -> bool:
        """Whether prefix caching is on: as asked, as ``--mamba-cache-mode`` implies, or default."""
        if self.prefix_caching is not None:
            return self.prefix_caching
        if profile.hybrid and self.mamba_cache_mode is not None:
            return self.mamba_cache_mode != "none"
        return self.vllm().hybrid_prefix_caching or not profile.hybrid

    def _mamba_mode(self, version: VllmVersion, caching: bool, mamba2: bool) -> str:
        asked = self.mamba_cache_mode
        if asked not in (None, "none", "align", "all"):
            raise BadInput("--mamba-cache-mode", asked, "is not none, align or all")
        if not caching:
            return "none"  # vLLM resets the mode when prefix caching is off
        if asked == "align" or not mamba2:
            return "align"  # and never leaves it at none when prefix caching is on
        if asked in (None, "none") and self.spec_tokens and version.release < (0, 21):
            return "align"
        return version.mamba2_mode


def _positive(what: str, value: int | None, default: int) -> int:
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 2**31:
        raise BadInput(what, value, "is not a whole number from 1 to 2**31")
    return value


def _on_triton(profile: ModelProfile, dtype: str) -> bool:
    """Whether vLLM leaves flash attention for Triton's: float32, and heads of several sizes."""
    sizes = {layer.kv.head_dim for layer in profile.layers if layer.kv is not None}
    return dtype == "float32" or len(sizes) > 1


def _blocks(platform: str, triton: bool, version: VllmVersion) -> tuple[int, int]:
    """(default block size, smallest block the attention kernel runs), in tokens."""
    if platform == "cpu":
        return 128, 32
    if platform == "xpu" and not triton:
        return 64, version.xpu_kernel_block
    if platform in ("xpu", "cuda"):
        return 16, 16
    raise BadInput("platform", platform, "is not xpu, cuda or cpu")


def _platform(devices: Sequence[Device]) -> str:
    return "cpu" if devices and all(device.is_cpu for device in devices) else "xpu"
