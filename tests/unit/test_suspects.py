"""The poison rule: a simulated engine whose requests kill it, and faults that come from nowhere."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import chain, cycle, repeat

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arcpp.supervise import Fault, FaultKind, RestartPolicy, Suspects

ALL = 12


@dataclass
class Engine:
    """Requests, the tokens they have, and faults. Each step runs some that may run.

    wanted: tokens each request is to make. poison: after how many tokens a request kills every
    step it is in. batch: picks those of the runnable that a step runs. strike: whether a fault
    that is nobody's doing hits this step.
    """

    wanted: dict[str, int]
    poison: Mapping[str, int]
    batch: Callable[[list[str]], list[str]] = list
    strike: Callable[[], bool] = lambda: False
    advances: Callable[[str], bool] = lambda _request: True
    suspects: Suspects = field(default_factory=Suspects)

    def __post_init__(self) -> None:
        self.tokens = dict.fromkeys(self.wanted, 0)
        self.live = list(self.wanted)
        self.finished: set[str] = set()
        self.failed: list[str] = []
        self.poisoned = self.struck = 0
        self.alone: dict[str, int] = {}

    def step(self) -> None:
        allowed = self.suspects.allowed()
        assert allowed is None or allowed <= set(self.live), "somebody waits for nobody"
        runnable = [one for one in self.live if allowed is None or one in allowed]
        assert runnable, "nothing may run"
        chosen = self.batch(runnable)
        killers = [one for one in chosen if self.tokens[one] >= self.poison.get(one, math.inf)]
        if killers or self.strike():
            self._fault(chosen, bool(killers))
            return
        for one in filter(self.advances, chosen):
            self.tokens[one] += 1
            self.alone.pop(one, None)
            self.suspects.progress(one, self.tokens[one])
            if self.tokens[one] >= self.wanted[one]:
                self._over(one)
                self.finished.add(one)

    def _fault(self, chosen: list[str], poisoned: bool) -> None:
        self.poisoned += poisoned
        self.struck += not poisoned
        if len(chosen) == 1:
            self.alone[chosen[0]] = self.alone.get(chosen[0], 0) + 1
        for one in self.suspects.fault({one: self.tokens[one] for one in chosen}):
            self.failed.append(one)
            self._over(one)

    def _over(self, one: str) -> None:
        self.live.remove(one)
        self.suspects.gone(one)

    def run(self, most: int = 5000) -> Engine:
        for _ in range(most):
            if not self.live:
                assert self.suspects.allowed() is None, "a trial of nobody"
                return self
            self.step()
        raise AssertionError(f"no end after {most} steps: {self.live}")

    @property
    def innocents_failed(self) -> list[str]:
        return [one for one in self.failed if one not in self.poison]


def _names(count: int = ALL) -> list[str]:
    return [f"r{index}" for index in range(count)]


@pytest.mark.parametrize("index", range(ALL))
@pytest.mark.parametrize("at", [0, 5])
def test_one_poisonous_request_of_twelve_fails_alone(index: int, at: int) -> None:
    engine = Engine(dict.fromkeys(_names(), 9), {f"r{index}": at}).run()
    assert engine.failed == [f"r{index}"]
    assert len(engine.finished) == 11
    assert engine.poisoned <= math.ceil(math.log2(ALL)) + 3


@pytest.mark.parametrize(("count", "faults"), [(1, 3), (2, 4), (3, 5), (12, 7), (256, 11)])
def test_the_number_of_faults_is_that_of_halving(count: int, faults: int) -> None:
    engine = Engine(dict.fromkeys(_names(count), 3), {"r0": 0}).run()
    assert engine.failed == ["r0"]
    assert engine.poisoned == faults


@pytest.mark.parametrize("second", range(1, ALL))
def test_two_poisonous_requests_at_once(second: int) -> None:
    engine = Engine(dict.fromkeys(_names(), 9), {"r0": 2, f"r{second}": 2}).run()
    assert sorted(engine.failed) == sorted(["r0", f"r{second}"])
    assert len(engine.finished) == 10
    assert engine.poisoned <= 2 * (math.ceil(math.log2(ALL)) + 3)


def test_everybody_poisonous() -> None:
    engine = Engine(dict.fromkeys(_names(), 9), dict.fromkeys(_names(), 1)).run()
    assert sorted(engine.failed) == sorted(_names())


@pytest.mark.parametrize(
    "strikes",
    [[True, False], [True, True, False, False], [True] * 5 + [False] * 12, [True] * 16],
)
def test_faults_from_outside_fail_nobody(strikes: list[bool]) -> None:
    """Often, in pairs, many running: but no request is alone in two of them running."""
    rest = chain(strikes, repeat(False)) if all(strikes) else cycle(strikes)
    engine = Engine(dict.fromkeys(_names(), 9), {}, strike=lambda: next(rest)).run()
    assert engine.failed == []


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_every_poisonous_request_fails_and_no_other(data: st.DataObject) -> None:
    """Any poison, any batches, any faults from outside: who fails, who finishes, how many faults.

    An innocent request fails only where faults from outside hit it twice running alone.
    """
    names = _names(data.draw(st.integers(1, 14), "requests"))
    wanted = {name: data.draw(st.integers(1, 5)) for name in names}
    guilty = data.draw(st.sets(st.sampled_from(names), max_size=4), "guilty")
    poison = {name: data.draw(st.integers(0, wanted[name] - 1)) for name in guilty}
    strikes = iter(data.draw(st.lists(st.booleans(), max_size=25), "strikes"))
    chance = random.Random(data.draw(st.integers(0, 2**32), "seed"))
    hit_alone: set[str] = set()

    def batch(runnable: list[str]) -> list[str]:
        return chance.sample(runnable, chance.randint(1, len(runnable)))

    class Watched(Engine):
        def _fault(self, chosen: list[str], poisoned: bool) -> None:
            super()._fault(chosen, poisoned)
            hit_alone.update(one for one, times in self.alone.items() if times >= 2)

    engine = Watched(
        wanted,
        poison,
        batch=batch,
        strike=lambda: next(strikes, False),
        advances=lambda _request: chance.random() < 0.7,
    ).run()
    assert set(poison) <= set(engine.failed)
    assert set(engine.innocents_failed) <= hit_alone
    assert engine.finished | set(engine.failed) == set(names)
    assert engine.poisoned <= len(poison) * (math.ceil(math.log2(len(names))) + 3)


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_a_fault_now_and_then_never_fails_an_innocent(data: st.DataObject) -> None:
    """Faults from outside, each followed by a token of everybody who was in it."""
    names = _names(data.draw(st.integers(1, 14), "requests"))
    chance = random.Random(data.draw(st.integers(0, 2**32), "seed"))
    engine = Engine(dict.fromkeys(names, 6), {})
    hit: dict[str, int] = {}

    def strike() -> bool:
        return not hit and chance.random() < 0.5

    engine.strike = strike
    while engine.live:
        before = engine.struck
        engine.step()
        if engine.struck > before:
            hit = {one: engine.tokens[one] for one in engine.live}
        hit = {one: had for one, had in hit.items() if one in engine.live}
        hit = {one: had for one, had in hit.items() if engine.tokens[one] == had}
        assert not engine.suspects.trying
    assert engine.failed == []


class Supervised(Engine):
    """An engine that restarts as long as the default budget lasts."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.policy = RestartPolicy(budget=5, window=600, backoff=1)
        self.over = False

    def step(self) -> None:
        before = sum(self.tokens.values())
        super().step()
        if sum(self.tokens.values()) > before:
            self.policy.recovered()

    def _fault(self, chosen: list[str], poisoned: bool) -> None:
        trial = self.suspects.trying
        super()._fault(chosen, poisoned)
        fault = Fault(FaultKind.STAGE_DIED, "", "")
        self.over = self.over or not self.policy.on_fault(fault, trial=trial).restart


@pytest.mark.parametrize("others", [(), *((f"r{index}",) for index in range(1, ALL))])
def test_the_budget_outlasts_poisonous_requests(others: tuple[str, ...]) -> None:
    engine = Supervised(dict.fromkeys(_names(), 9), dict.fromkeys(("r0", *others), 2))
    engine.run()
    assert not engine.over
    assert len(engine.finished) == ALL - 1 - len(others)


@pytest.mark.parametrize("count", [6, 12, 64])
def test_a_broken_device_ends_the_server_before_it_fails_requests(count: int) -> None:
    engine = Supervised(dict.fromkeys(_names(count), 9), {}, strike=lambda: True)
    while not engine.over:
        engine.step()
    assert engine.failed == []
    assert engine.struck <= 8
