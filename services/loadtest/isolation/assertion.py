"""The isolation test from end to end: how long prompts have to be, how many it takes, the rounds, the verdict.

Knows neither flags nor files. Keeps no state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from cache_store.errors import StemcacheError
from services.loadtest.isolation.calibration import Calibration, calibrate
from services.loadtest.isolation.course import Course, CoursePlan, Progress
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
    prompts = FreshPrompts(wanted.seed, vocab_size)
    calibration = await calibrate(prober, prompts, max_tokens, wanted.variants[-1], listeners.report)
    power, expected_s = _chosen(wanted, calibration)
    if not calibration.tells:
        reason = (
            "the owner's own repeats cannot be told from first requests, at no length of prompts: caching is off, or "
            "times drown in noise"
        )
        return Assertion(wanted, calibration, Verdict(Outcome.BLIND, power, ()), reason, ())
    listeners.report(power.text())
    listeners.report(f"{4 * power.num_samples * power.num_variants:,} requests, about {_minutes(expected_s)}")
    course = Course(prober, prompts, CoursePlan(power.num_samples, calibration.num_tokens), listeners.progress)
    reason = ""
    try:
        await course.run(wanted.variants)
    except StemcacheError as error:
        reason = f"a request was not answered: {error}"
    except asyncio.CancelledError:
        reason = "it was ended from outside"
    return Assertion(wanted, calibration, judge(course.observations, power), reason, tuple(course.observations))


def _chosen(wanted: Wanted, calibration: Calibration) -> tuple[Power, float]:
    """The tightest test that is done in time, and how long it takes; else the loosest."""
    plans: list[tuple[Power, float]] = []
    for limit in wanted.limits:
        power = plan_power(limit, len(wanted.variants))
        plans.append((power, _expected_s(power, calibration)))
        if plans[-1][1] <= wanted.within_s:
            break
    return plans[-1]


def _expected_s(power: Power, calibration: Calibration) -> float:
    round_s = 3.0 * calibration.first_s + calibration.repeat_s
    return power.num_variants * power.num_samples * round_s


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} minutes"
