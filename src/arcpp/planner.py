"""Make a plan: pure and deterministic, from a profile, devices and a request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from . import solver
from .devices import Device, check_memory
from .errors import BadInput, DoesNotFit
from .memory.placement import stage_roles
from .memory.vllm import KvLayout
from .memory.workspace import stage_workspace
from .partition import Partition, Stage, check_partition
from .plan import Plan, StagePlan
from .profile.model import ModelProfile
from .request import PlanRequest
from .units import format_gib

__all__ = ["Plan", "PlanRequest", "StagePlan", "make_plan"]


def make_plan(profile: ModelProfile, devices: Sequence[Device], request: PlanRequest) -> Plan:
    """The best plan for ``devices``, one per stage, in stage order.

    Devices of the same name share one budget. Raises DoesNotFit (with fields), or BadInput
    for options, devices and partitions that cannot be.
    """
    return Planning(profile, tuple(devices), request).plan()


@dataclass(frozen=True)
class _Use:
    """What one stage takes before its pool."""

    roles: dict[str, int]
    weights: int
    active: int
    workspace: int


class Planning:
    """One planning task: the layout, the stages' needs, the search and its failure."""

    def __init__(
        self, profile: ModelProfile, devices: tuple[Device, ...], request: PlanRequest
    ) -> None:
        self.profile, self.devices, self.request = profile, devices, request
        self._check()
        self.layout = KvLayout(profile, request.kv_options(profile, devices))
        self.wanted = request.wanted_length(profile)
        self._weights = [0]
        self._active = [0]
        for layer in profile.layers:
            self._weights.append(self._weights[-1] + layer.weights_bytes)
            self._active.append(self._active[-1] + layer.active_bytes)
        names = list(dict.fromkeys(device.name for device in devices))
        self._device_of = tuple(names.index(device.name) for device in devices)
        self.budgets = self._budgets(names)

    def _check(self) -> None:
        devices, request = self.devices, self.request
        if not devices:
            raise BadInput("devices", 0, "is too few: a plan needs at least one")
        if len(devices) > len(self.profile.layers):
            right = f"stages are too many for {len(self.profile.layers)} layers"
            raise BadInput("devices", len(devices), right)
        by_name: dict[str, Device] = {}
        for device in devices:
            check_memory(device.name, device.memory.total, device.memory.free)
            if by_name.setdefault(device.name, device).memory != device.memory:
                raise BadInput("device", device.name, "is given twice with different memory")
        for name in request.reserves:
            if name not in by_name:
                raise BadInput("--reserve", name, f"is not one of {', '.join(by_name)}")
        if request.partition is not None:
            check_partition(Partition(request.partition), len(self.profile.layers), len(devices))
        if request.kv_memory is not None and len(request.kv_memory) not in (1, len(devices)):
            right = f"values, but there are {len(devices)} stages"
            raise BadInput("--kv-memory", len(request.kv_memory), right)

    def _budgets(self, names: list[str]) -> tuple[int, ...]:
        """Bytes per device name; with kv_memory, per stage."""
        if self.request.kv_memory is not None:
            given = self.request.kv_memory
            return given * len(self.devices) if len(given) == 1 else given
        by_name = {device.name: device for device in self.devices}
        return tuple(self.request.budget(by_name[name]) for name in names)

    # What stages need.

    def use(self, stage: Stage) -> _Use:
        """Weights and workspace of ``stage``."""
        request, profile = self.request, self.profile
        roles = stage_roles(
            profile,
            stage.index,
            len(self.devices),
            dropped=request.dropped_roles,
            spec_tokens=request.spec_tokens,
        )
        active = self._active[stage.high] - self._active[stage.low]
        if stage.index == len(self.devices) - 1:
            active += roles.get("final_norm", 0)
            active += roles.get("lm_head", profile.roles["embed"] if profile.tied else 0)
        workspace = stage_workspace(
            profile,
            stage.low,
            stage.high,
            tokens=request.batched_tokens,
            sequences=request.sequences,
        )
        weights = self._weights[stage.high] - self._weights[stage.low] + sum(roles.values())
        return _Use(roles, weights, active, workspace)

    def need(self, index: int, low: int, high: int) -> solver.Need | None:
        """The solver's view of a stage; None where vLLM cannot run it (no cache at all)."""
        per_block = self.layout.bytes_per_block(low, high)
        if per_block == 0 and self.layout.groups:
            return None
        use = self.use(Stage(index, low, high))
        fixed = 0 if self.request.kv_memory is not None else use.weights + use.workspace
        return solver.Need(fixed, per_block, self._cost(index, use))

    def _cost(self, index: int, use: _Use) -> int:
        if any(device.bandwidth_gb_s is None for device in self.devices):
            return 0
        bandwidth = self.devices[index].bandwidth_gb_s
        return use.active * round(1e6 / bandwidth) if bandwidth else 0

    def problem(self, extra: int = 0) -> solver.Problem:
        """The search, with ``extra`` bytes added to every budget."""
        if self.request.kv_memory is not None:
            owners = tuple(range(len(self.devices)))
        else:
            owners = self._device_of
        budgets = tuple(budget + extra for budget in self.budgets)
        layers = len(self.profile.layers)
        return solver.Problem(layers, owners, budgets, self.need, self.profile.period)

    # The search.

    @property
    def least_blocks(self) -> int:
        """Blocks without which the plan is refused: one request of the wanted length."""
        if not self.layout.groups:
            return 0
        return self.layout.blocks_per_request(self.wanted or 1) + self.layout.null_blocks

    def find(self) -> Partition | None:
        """The best partition, or None when none fits."""
        problem, least = self.problem(), self.least_blocks
        if self.request.partition is not None:
            enough = solver.blocks_of(problem, self.request.partition) >= least
            return Partition(self.request.partition) if enough else None
        counts = solver.solve(problem, least)
        return None if counts is None else Partition(counts)

    def plan(self) -> Plan:
        """See make_plan()."""
        partition = self.find()
        if partition is None:
            raise self._refusal()
        return self._describe(partition)

    def _describe(self, partition: Partition) -> Plan:
        problem, layout, request = self.problem(), self.layout, self.request
        blocks = self._blocks_by_stage(partition, problem)
        num_blocks = min(blocks)
        if num_blocks >= solver.UNBOUNDED:
            num_blocks, blocks = 0, [0] * len(blocks)
        longest = self.profile.max_model_len
        if layout.groups:
            longest = layout.longest_request(num_blocks, self.profile.max_model_len)
        effective = self.wanted or longest
        each = layout.blocks_per_request(effective) if layout.groups else 0
        together = max(1, (num_blocks - layout.null_blocks) // each) if each else 0
        state_blocks = together * layout.state_blocks(effective)
        stages = tuple(
            self._stage(stage, num_blocks, min(state_blocks, num_blocks), blocks[stage.index])
            for stage in partition.stages
        )
        return Plan(
            host=f"vllm@{layout.options.version.text}",
            partition=partition,
            stages=self._with_unused(stages),
            effective_len=effective,
            max_model_len=longest,
            kv_cache_tokens=layout.capacity_tokens(num_blocks, effective),
            block_tokens=layout.block_tokens,
            num_blocks=num_blocks,
            null_blocks=layout.null_blocks,
            blocks_per_request=each,
            state_blocks_per_request=layout.state_blocks(effective),
            max_num_seqs=layout.max_sequences(num_blocks, request.sequences),
            binding_stage=blocks.index(min(blocks)),
            decode_tokens_per_s_limit=self._decode_limit(stages),
            warnings=self._warnings(partition, stages),
            host_args=self._arguments(effective),
            env={"VLLM_PP_LAYER_PARTITION": str(partition)} if len(stages) > 1 else {},
        )

    def _blocks_by_stage(self, partition: Partition, problem: solver.Problem) -> list[int]:
        """Blocks each stage can hold; stages that share a device hold equally many."""
        needs: dict[int, list[solver.Need]] = {}
        for stage in partition.stages:
            need = self.need(stage.index, stage.low, stage.high)
            assert need is not None  # such partitions are never found, and refused when given
            needs.setdefault(problem.devices[stage.index], []).append(need)
        held = {d: solver.blocks_within(problem.budgets[d], needs[d]) for d in needs}
        return [held[problem.devices[stage.index]] for stage in partition.stages]

    def _stage(self, stage: Stage, num_blocks: int, state_blocks: int, own: int) -> StagePlan:
        device, use = self.devices[stage.index], self.use(stage)
        per_block = self.layout.bytes_per_block(stage.low, stage.high)
        state, pool = state_blocks * per_block, num_blocks * per_block
        shared = len(set(self._device_of)) < len(self.devices)
        available = own * per_block
        if self.request.kv_memory is not None:
            available = self.budgets[stage.index]
        elif not shared:
            available = self.budgets[stage.index] - use.weights - use.workspace
        return StagePlan(
            device=device.name,
            low=stage.low,
            high=stage.high,
            roles=tuple(use.roles),
            weights_bytes=use.weights,
            active_bytes=use.active,
            kv_bytes=pool - state,
            state_bytes=state,
            workspace_bytes=use.workspace,
            margin_bytes=self.request.margin_of(device),
            reserve_bytes=device.memory.reserve + self.request.reserves.get(device.name, 0),
            total_bytes=use.weights + use.workspace + pool,
            free_bytes=device.memory.free,
            unused_bytes=0,
            bytes_per_block=per_block,
            kv_available_bytes=available,
            num_blocks=own,
        )

    def _with_unused(self, stages: tuple[StagePlan, ...]) -> tuple[StagePlan, ...]:
        totals: dict[str, int] = {}
        for stage in stages:
            totals[stage.device] = totals.get(stage.device, 0) + stage.total_bytes
        return tuple(
            replace(
                stage,
                unused_bytes=stage.free_bytes
                - stage.reserve_bytes
                - stage.margin_bytes
                - totals[stage.device],
            )
            for stage in stages
        )

    def _decode_limit(self, stages: tuple[StagePlan, ...]) -> float | None:
        seconds = 0.0
        for stage, device in zip(stages, self.devices, strict=True):
            if device.bandwidth_gb_s is None:
                return None
            seconds += stage.active_bytes / (device.bandwidth_gb_s * 1e9)
        return round(1 / seconds, 2) if seconds else None

    def _warnings(self, partition: Partition, stages: tuple[StagePlan, ...]) -> tuple[str, ...]:
        found: list[str] = []
        crooked = partition.misaligned(self.profile.period)
        if crooked and self.profile.hybrid:
            found.append(
                f"{crooked} of {len(stages) - 1} cuts is not on a multiple of "
                f"{self.profile.period} layers: the cache pool pads the difference"
            )
        for stage in self._with_unused(stages):
            if stage.unused_bytes < 0 and self.request.kv_memory is not None:
                found.append(
                    f"{stage.device}: the given KV memory and the weights exceed its free "
                    f"memory by {format_gib(-stage.unused_bytes)} GiB"
                )
        return tuple(dict.fromkeys(found))

    def _arguments(self, effective: int) -> tuple[str, ...]:
        request, stages = self.request, len(self.devices)
        arguments = ["--distributed-executor-backend", "arcpp"] if stages > 1 else []
        arguments += ["--pipeline-parallel-size", str(stages)] if stages > 1 else []
        arguments += ["--max-model-len", str(effective)]
        if request.kv_cache_dtype != "auto":
            arguments += ["--kv-cache-dtype", request.kv_cache_dtype]
        if request.block_size is not None:
            arguments += ["--block-size", str(request.block_size)]
        if (
            self.profile.hybrid
            and (request.prefix_caching, request.mamba_cache_mode) != (None,) * 2
        ):
            caching = self.layout.options.prefix_caching
            arguments.append(f"--{'' if caching else 'no-'}enable-prefix-caching")
        if request.max_num_batched_tokens is not None:
            arguments += ["--max-num-batched-tokens", str(request.max_num_batched_tokens)]
        return tuple(arguments)

    # Refusal.

    def _refusal(self) -> DoesNotFit:
        partition = self.request.partition or self._least_short()
        stage, missing = self._shortest(Partition(partition))
        device = self.devices[stage.index].name
        nearest = self._nearest()
        length = self.wanted or 1
        end = f"; nearest that fits: {nearest}" if nearest else "; no nearby setting fits"
        tokens = "token" if length == 1 else "tokens"
        message = (
            f"does not fit: stage {stage.index} ({device}, layers {stage.low} to "
            f"{stage.high - 1}) lacks {format_gib(missing)} GiB ({missing} bytes) for one "
            f"request of {length} {tokens}{end}"
        )
        return DoesNotFit(
            message, stage=stage.index, device=device, missing_bytes=missing, nearest=nearest
        )

    def _least_short(self) -> tuple[int, ...]:
        """The partition whose worst device lacks least."""
        low, high = 0, 1
        while solver.solve(self.problem(high), self.least_blocks) is None:
            low, high = high, high * 2
            if high > 2**60:
                raise BadInput("partition", len(self.devices), "stages cannot each hold a cache")
        while high - low > max(1, high // 1024):
            middle = (low + high) // 2
            if solver.solve(self.problem(middle), self.least_blocks) is None:
                low = middle
            else:
                high = middle
        found = solver.solve(self.problem(high), self.least_blocks)
        assert found is not None
        return found

    def _shortest(self, partition: Partition) -> tuple[Stage, int]:
        """The stage whose device lacks most for the least blocks, and by how much."""
        problem = self.problem()
        lacking: dict[int, int] = {}
        for stage in partition.stages:
            need = self.need(stage.index, stage.low, stage.high)
            if need is None:
                right = f"gives stage {stage.index} no layer with a cache, which vLLM cannot run"
                raise BadInput("--partition", str(partition), right)
            owner = problem.devices[stage.index]
            used = need.fixed + self.least_blocks * need.per_block
            lacking[owner] = lacking.get(owner, -problem.budgets[owner]) + used
        worst = max(lacking, key=lambda owner: lacking[owner])
        index = max(i for i, owner in enumerate(problem.devices) if owner == worst)
        return partition.stages[index], max(1, lacking[worst])

    def _nearest(self) -> str | None:
        """The first change of one setting that makes it fit, ready to paste."""
        request = self.request
        tries: list[tuple[str, PlanRequest]] = []
        if self.wanted is not None:
            tries.append(("--max-model-len {0}", replace(request, max_model_len="auto")))
        if request.partition is not None:
            tries.append(("--partition {1}", replace(request, partition=None)))
        if request.max_num_batched_tokens is None or request.max_num_batched_tokens > 512:
            tries.append(
                ("--max-num-batched-tokens 512", replace(request, max_num_batched_tokens=512))
            )
        if request.kv_cache_dtype == "auto":
            tries.append(("--kv-cache-dtype fp8", replace(request, kv_cache_dtype="fp8")))
        for text, changed in tries:
            other = Planning(self.profile, self.devices, changed)
            partition = other.find()
            if partition is not None:
                return text.format(other._describe(partition).max_model_len, partition)
        return None
