"""What the observations say: no leak, a leak, or nothing.

Pure. A variant passes where own repeats are told from first requests, by time and by cached tokens (else the test is
blind), while neither tenant can tell prompts that the other one has cached from prompts that nobody has sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from services.loadtest.isolation.auc import Auc, auc
from services.loadtest.isolation.power import CONFIDENCE, LEAST_SAMPLES, Power
from services.loadtest.isolation.samples import CONTROL_AUC, Kind, Observation, Variant, cached, ttfts

_SURE = 0.999
"""That an AUC is not 0.5, before somebody is told of a leak: a test that ended early may be off by much."""


class Outcome(StrEnum):
    """Of a variant, or of the whole test."""

    PASSED = "passed"
    LEAK = "leak"
    BLIND = "could not tell"


@dataclass(frozen=True, slots=True)
class VariantVerdict:
    """One variant."""

    variant: Variant
    outcome: Outcome
    reason: str
    num_samples: int
    """Of either kind."""
    own_by_time: Auc | None
    """First requests against repeats; None where there were too few to say."""
    own_by_tokens: Auc | None
    across_by_time: Auc | None
    """First requests against those that the other tenant has cached; above 0.5 where the latter are faster."""
    across_bound: float
    """Upper bound of the AUC in either direction."""
    leaked_tokens: int
    """Cached tokens that a tenant was told of and that were not its own."""

    @property
    def is_drowned(self) -> bool:
        """Whether hits were served, and could not be told by their times: what longer prompts mend."""
        if self.outcome is not Outcome.BLIND or self.own_by_time is None or self.own_by_tokens is None:
            return False
        return self.own_by_time.value < CONTROL_AUC <= self.own_by_tokens.value


@dataclass(frozen=True, slots=True)
class Verdict:
    """The test."""

    outcome: Outcome
    power: Power
    variants: tuple[VariantVerdict, ...]


def judge(observations: Sequence[Observation], power: Power) -> Verdict:
    """A leak in one variant is a leak; to pass, all that were planned have to."""
    variants = tuple(
        _judge_variant(each, [o for o in observations if o.variant is each], power)
        for each in Variant
        if any(o.variant is each for o in observations)
    )
    outcomes = {each.outcome for each in variants}
    if Outcome.LEAK in outcomes:
        return Verdict(Outcome.LEAK, power, variants)
    complete = len(variants) == power.num_variants and outcomes == {Outcome.PASSED}
    return Verdict(Outcome.PASSED if complete else Outcome.BLIND, power, variants)


def _judge_variant(variant: Variant, seen: Sequence[Observation], power: Power) -> VariantVerdict:
    numbers = {kind: sum(each.kind is kind for each in seen) for kind in Kind}
    samples = min(numbers[Kind.FIRST], numbers[Kind.CROSSED])
    leaked = sum(each.leaked_tokens for each in seen)
    if min(numbers.values()) < LEAST_SAMPLES:
        outcome, reason = (
            (Outcome.LEAK, _told(leaked))
            if leaked
            else (
                Outcome.BLIND,
                f"it ended after {samples} of {power.num_samples} requests of either kind",
            )
        )
        return VariantVerdict(variant, outcome, reason, samples, None, None, None, 1.0, leaked)
    own_by_time = auc(ttfts(seen, Kind.REPEAT), ttfts(seen, Kind.FIRST))
    own_by_tokens = auc(cached(seen, Kind.FIRST), cached(seen, Kind.REPEAT))
    across = auc(ttfts(seen, Kind.CROSSED), ttfts(seen, Kind.FIRST))
    bound = across.upper_bound(CONFIDENCE)
    outcome, reason = _outcome(own_by_time, own_by_tokens, across, leaked, samples, power)
    return VariantVerdict(variant, outcome, reason, samples, own_by_time, own_by_tokens, across, bound, leaked)


def _outcome(by_time: Auc, by_tokens: Auc, across: Auc, leaked: int, samples: int, power: Power) -> tuple[Outcome, str]:
    bound = across.upper_bound(CONFIDENCE)
    if leaked:
        return Outcome.LEAK, _told(leaked)
    if by_tokens.value < CONTROL_AUC:
        return Outcome.BLIND, (
            f"a tenant's own repeats were not served from the cache (AUC of cached tokens {by_tokens.value:.3f}, "
            f"{CONTROL_AUC:g} is needed): is caching off, or the pool too small?"
        )
    if by_time.value < CONTROL_AUC:
        return Outcome.BLIND, (
            f"a tenant's own repeats could not be told by their times (AUC {by_time.value:.3f}, {CONTROL_AUC:g} is "
            "needed), so the other one's could not have been told either: longer prompts or a quieter machine help"
        )
    if bound < power.limit:
        if samples < power.num_samples:
            return Outcome.BLIND, f"it ended after {samples} of {power.num_samples} requests of either kind"
        return Outcome.PASSED, f"AUC at most {bound:.4f}, below {power.limit:g}"
    if across.distinguishability - 0.5 > across.upper_bound(_SURE) - across.distinguishability:
        return Outcome.LEAK, (
            f"a tenant tells what the other one has cached: AUC {across.value:.4f}, at most {bound:.4f} where "
            f"{power.limit:g} is allowed"
        )
    return Outcome.BLIND, f"AUC at most {bound:.4f}, not below {power.limit:g}, and not surely above 0.5: repeat it"


def _told(leaked: int) -> str:
    return f"a tenant was told of {leaked:,} cached tokens that were not its own"
