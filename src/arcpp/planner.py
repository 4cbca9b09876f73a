"""Make a plan: pure and deterministic, from a profile, devices and a request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from . import solver
from .costs import Costs
from .devices import Device, check_memory
from .errors import BadInput
from .memory.layout import UNBOUNDED, CacheLayout
from .partition import Partition, Stage, check_partition
from .plan import Plan, StagePlan
from .profile.model import ModelProfile
from .request import PlanRequest
from .vllm_args import arguments, environment
from .warn import Findings, layers_on, mixes_processor, plan_warnings

__all__ = ["Plan", "PlanRequest", "Planner", "Planning", "StagePlan", "make_plan"]

#: make_plan(), or whoever a hook puts in its place.
Planner = Callable[[ModelProfile, Sequence[Device], PlanRequest], Plan]

#: Length of the one request that the goal decode keeps room for when none is asked for.
DECODE_TOKENS = 8192


def make_plan(profile: ModelProfile, devices: Sequence[Device], request: PlanRequest) -> Plan:
    """The best plan for ``devices``, one per stage, in stage order.

    Devices of the same name share one budget. Raises DoesNotFit (with fields), or BadInput
    for options, devices and partitions that cannot be.
    """
    from .refusal import refusal

    planning = Planning(profile, tuple(devices), request)
    partition = planning.find()
    if partition is None:
        raise refusal(planning)
    return planning.describe(partition)


class Planning:
    """One planning task: the layout, what stages cost, the search."""

    def __init__(
        self, profile: ModelProfile, devices: tuple[Device, ...], request: PlanRequest
    ) -> None:
        """Raises BadInput."""
        self.profile, self.devices, self.request = profile, devices, request
        _check(profile, devices, request)
        self.layout: CacheLayout = request.layout(profile, devices)
        self.wanted = request.wanted_length(profile)
        self.costs = Costs(profile, self.layout, devices, request)
        names = list(dict.fromkeys(device.name for device in devices))
        self._device_of = tuple(names.index(device.name) for device in devices)
        self.budgets = self._budgets(names)

    def _budgets(self, names: list[str]) -> tuple[int, ...]:
        """Bytes per device name; with kv_memory, per stage."""
        given = self.request.kv_memory
        if given is not None:
            return given * len(self.devices) if len(given) == 1 else given
        by_name = {device.name: device for device in self.devices}
        return tuple(self.request.budget(by_name[name]) for name in names)

    def problem(self) -> solver.Problem:
        """The search."""
        if self.request.kv_memory is not None:
            owners = tuple(range(len(self.devices)))
        else:
            owners = self._device_of
        return solver.Problem(
            len(self.profile.layers),
            owners,
            self.budgets,
            self.costs.need,
            self.profile.period,
        )

    @property
    def least_blocks(self) -> int:
        """Blocks without which the plan is refused: one request of the wanted length."""
        if not self.layout.caches:
            return 0
        return self.layout.blocks_per_request(self.wanted or 1) + self.layout.null_blocks

    def find(self) -> Partition | None:
        """The best partition, or None when none fits."""
        problem, least = self.problem(), self.least_blocks
        if self.request.partition is not None:
            enough = solver.blocks_of(problem, self.request.partition) >= least
            return Partition(self.request.partition) if enough else None
        counts = solver.solve(problem, least)
        if counts is not None and self.request.maximize != "context":
            most = solver.blocks_of(problem, counts)
            counts = solver.solve_cheapest(problem, self._enough_blocks(least, most))
        return None if counts is None else Partition(counts)

    def _enough_blocks(self, least: int, most: int) -> int:
        """Blocks after which speed matters more: for the goals concurrency and decode.

        The fastest split alone may hold a few tokens only, so where no length is asked for the
        goal decode keeps room for one request of DECODE_TOKENS, or as many of them as can be.
        """
        if self.request.maximize == "decode":
            length = min(DECODE_TOKENS, self.profile.max_model_len)
            if self.wanted is not None or not self.layout.caches:
                return least
            return min(most, self.layout.blocks_per_request(length) + self.layout.null_blocks)
        asked, one = self.request.sequences, self.layout.max_sequences
        if one(most, asked) < asked:
            return most
        low, high = least, most
        while low < high:
            middle = (low + high) // 2
            if one(middle, asked) >= asked:
                high = middle
            else:
                low = middle + 1
        return low

    def blocks_by_stage(self, partition: Partition) -> list[int]:
        """Blocks each stage can hold; stages that share a device hold equally many."""
        problem = self.problem()
        needs: dict[int, list[solver.Need]] = {}
        for stage in partition.stages:
            need = self.costs.need(stage.index, stage.low, stage.high)
            assert need is not None  # such partitions are never found, and refused when given
            needs.setdefault(problem.devices[stage.index], []).append(need)
        held = {d: solver.blocks_within(problem.budgets[d], needs[d]) for d in needs}
        return [held[problem.devices[stage.index]] for stage in partition.stages]

    def describe(self, partition: Partition) -> Plan:
        """The plan that ``partition`` makes; it must fit."""
        layout, request = self.layout, self.request
        blocks = self.blocks_by_stage(partition)
        num_blocks = min(blocks)
        if num_blocks >= UNBOUNDED:
            num_blocks, blocks = 0, [0] * len(blocks)
        longest = self.profile.max_model_len
        if layout.caches:
            longest = layout.longest_request(num_blocks, self.profile.max_model_len)
        effective = self.wanted or longest
        each = layout.blocks_per_request(effective)
        together = max(1, (num_blocks - layout.null_blocks) // each) if each else 0
        state = min(num_blocks, together * layout.state_blocks(effective))
        stages = self._with_unused(
            tuple(
                self._stage(stage, num_blocks, state, blocks[stage.index])
                for stage in partition.stages
            )
        )
        plan = Plan(
            host=layout.label,
            partition=partition,
            stages=stages,
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
            warnings=(),
            host_args=arguments(request, self.profile, len(stages), effective),
            env=environment(request, partition),
        )
        found = Findings(self.profile, layout, request, self.devices, plan, self._faster(plan))
        return replace(plan, warnings=plan_warnings(found))

    def _faster(self, plan: Plan) -> Plan | None:
        """The plan of the goal decode, where it leaves fewer layers to a processor beside cards."""
        request = self.request
        given = request.partition is not None or request.kv_memory is not None
        if given or request.maximize == "decode" or not mixes_processor(self.devices):
            return None
        other = Planning(self.profile, self.devices, replace(request, maximize="decode"))
        partition = other.find()
        if partition is None:
            return None
        faster = other.describe(partition)
        return faster if layers_on(faster.stages) < layers_on(plan.stages) else None

    def _stage(self, stage: Stage, num_blocks: int, state_blocks: int, own: int) -> StagePlan:
        device = self.devices[stage.index]
        use = self.costs.use(stage.index, stage.low, stage.high)
        per_block = self.layout.bytes_per_block(stage.index, stage.low, stage.high)
        state, pool = state_blocks * per_block, num_blocks * per_block
        available = own * per_block
        if self.request.kv_memory is not None:
            available = self.budgets[stage.index]
        elif len(set(self._device_of)) == len(self.devices):
            available = self.budgets[stage.index] - use.weights - use.workspace - use.state
        return StagePlan(
            device=device.name,
            low=stage.low,
            high=stage.high,
            roles=use.roles,
            weights_bytes=use.weights,
            active_bytes=use.active,
            kv_bytes=pool - state,
            state_bytes=state + use.state,
            workspace_bytes=use.workspace,
            margin_bytes=self.request.margin_of(device),
            reserve_bytes=device.memory.reserve + self.request.reserves.get(device.name, 0),
            total_bytes=use.weights + use.workspace + use.state + pool,
            device_bytes=device.memory.total,
            free_bytes=device.memory.free,
            unused_bytes=0,
            memory_source=device.memory.source,
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


def _check(profile: ModelProfile, devices: tuple[Device, ...], request: PlanRequest) -> None:
    """Refuse devices and requests that cannot be (BadInput)."""
    if not devices:
        raise BadInput("devices", 0, "is too few: a plan needs at least one")
    if len(devices) > len(profile.layers):
        right = f"stages are too many for {len(profile.layers)} layers"
        raise BadInput("devices", len(devices), right)
    by_name: dict[str, Device] = {}
    for device in devices:
        check_memory(device.name, device.memory.total, device.memory.free)
        if by_name.setdefault(device.name, device) != device:
            right = "is described twice, differently: repeat it for more stages, or rename a card"
            raise BadInput("device", device.name, right)
    for name in request.reserves:
        if name not in by_name:
            raise BadInput("--reserve", name, f"is not one of {', '.join(by_name)}")
    if request.partition is not None:
        check_partition(Partition(request.partition), len(profile.layers), len(devices))
    if request.kv_memory is not None and len(request.kv_memory) not in (1, len(devices)):
        stages = f"{len(devices)} stage{'' if len(devices) == 1 else 's'}"
        right = f"values for {stages}: write one for all, or one for each"
        raise BadInput("--kv-memory", len(request.kv_memory), right)
