"""The isolation test from end to end: how long prompts have to be, how many it takes, the rounds, the verdict.

Knows neither flags nor files. Keeps no state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cache_store.errors import StemcacheError
from services.loadtest.isolation.calibration import Calibration, Calibrator
from services.loadtest.isolation.course import Course, CoursePlan, Progress
from services.loadtest.isolation.own_tokens import OwnTokens
from services.loadtest.isolation.power import Power, plan_power
from services.loadtest.isolation.prompts import FreshPrompts
from services.loadtest.isolation.samples import Observation, Prober, Variant
from services.loadtest.isolation.verdict import Outcome, Verdict, judge


@dataclass(frozen=True, slots=True)
class Wanted:
    """How the test is to be."""

    limits: tuple[float, ...]
    """Of the AUC, tightest first: the first that is done within the time is taken, else the last."""
    within_s: float
    variants: tuple[Variant, ...]
    """The one in which times scatter most comes last: prompts are made long enough for that one."""
    seed: int


@dataclass(frozen=True, slots=True)
class Assertion:
    """What came of it."""

    wanted: Wanted
    calibration: Calibration
    verdict: Verdict
    reason: str
    """Why it ended as it did, where no variant says so; empty otherwise."""
    observations: tuple[Observation, ...]


@dataclass(frozen=True, slots=True)
class Listeners:
    """Who is told what goes on."""

    report: Callable[[str], None]
    """A line at a time."""
    progress: Progress


async def assert_isolation(
    prober: Prober, vocab_size: int, max_tokens: int, wanted: Wanted, listeners: Listeners
) -> Assertion:
    """Runs the test. `max_tokens` is the longest prompt that the model takes. A request that fails ends it."""
    prober, prompts = OwnTokens(prober), FreshPrompts(wanted.seed, vocab_size)
    calibrator = Calibrator(prober, prompts, listeners.report)
    calibration = await calibrator.length(max_tokens, wanted.variants[-1])
    paces = [await calibrator.pace(calibration.num_tokens, each) for each in wanted.variants[:-1]] + [calibration]
    power, expected_s = _chosen(wanted, paces)
    if not calibration.tells:
        reason = (
            "a tenant's own repeats cannot be told from first requests, at no length of prompts: caching is off, or "
            "times drown in noise"
        )
        return Assertion(wanted, calibration, Verdict(Outcome.BLIND, power, ()), reason, ())
    listeners.report(power.text())
    run = _Run(prober, prompts, power, listeners)
    plan = CoursePlan.of(power, calibration.num_tokens)
    listeners.report(f"{plan.num_requests * power.num_variants:,} requests, about {_minutes(expected_s)}")
    await run.course(wanted.variants, calibration.num_tokens)
    drowned = [each.variant for each in run.verdict.variants if each.is_drowned]
    longer = 2 * calibration.num_tokens
    if drowned and not run.reason and longer <= max_tokens:
        listeners.report(
            f"the machine has become too restless for {calibration.num_tokens:,} tokens; once more with {longer:,}: "
            + " and ".join(drowned)
        )
        await run.course(drowned, longer)
    return Assertion(wanted, calibration, run.verdict, run.reason, tuple(run.observations))


class _Run:
    """What is measured once lengths and numbers are known."""

    def __init__(self, prober: Prober, prompts: FreshPrompts, power: Power, listeners: Listeners) -> None:
        self._prober = prober
        self._prompts = prompts
        self._power = power
        self._listeners = listeners
        self.observations: list[Observation] = []
        self.reason = ""
        """Why it did not come to its end."""

    @property
    def verdict(self) -> Verdict:
        """On all of it."""
        return judge(self.observations, self._power)

    async def course(self, variants: Sequence[Variant], num_tokens: int) -> None:
        """Those variants; in place of what was seen of them before."""
        self.observations = [each for each in self.observations if each.variant not in variants]
        course = Course(self._prober, self._prompts, CoursePlan.of(self._power, num_tokens), self._listeners.progress)
        try:
            await course.run(variants)
        except StemcacheError as error:
            self.reason = f"a request was not answered: {error}"
        except asyncio.CancelledError:
            self.reason = "it was ended from outside"
        self.observations += course.observations


def _chosen(wanted: Wanted, paces: Sequence[Calibration]) -> tuple[Power, float]:
    """The tightest test that is done in time, and how long it takes; else the loosest."""
    plans: list[tuple[Power, float]] = []
    for limit in wanted.limits:
        power = plan_power(limit, len(wanted.variants))
        plans.append((power, sum(2.0 * power.num_samples * each.pace_s for each in paces)))
        if plans[-1][1] <= wanted.within_s:
            break
    return plans[-1]


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} minutes"
