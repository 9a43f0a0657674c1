"""What the observations say: no leak, a leak, or nothing.

Pure. A variant passes where the owner's repeats are told from its first requests, by time and by cached tokens (else
the test is blind), while the other tenant cannot tell prompts that the owner has cached from fresh ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from services.loadtest.isolation.auc import Auc, auc
from services.loadtest.isolation.power import CONFIDENCE, LEAST_SAMPLES, Power
from services.loadtest.isolation.samples import CONTROL_AUC, Kind, Observation, Party, Variant, cached, ttfts


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
    num_rounds: int
    own_by_time: Auc | None
    """First requests against repeats; None where there were too few to say."""
    own_by_tokens: Auc | None
    across_by_time: Auc | None
    """Fresh prompts against those that the owner has cached; above 0.5 where the latter are faster."""
    across_bound: float
    """Upper bound of the AUC in either direction."""
    leaked_tokens: int
    """Cached tokens that the other tenant was told of."""


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
    rounds = min(sum(each.kind is kind for each in seen) for kind in Kind)
    leaked = sum(each.answer.cached_tokens for each in seen if each.kind.party is Party.OTHER)
    if rounds < LEAST_SAMPLES:
        outcome, reason = (
            (Outcome.LEAK, _told(leaked))
            if leaked
            else (
                Outcome.BLIND,
                f"it ended after {rounds} of {power.num_samples} rounds",
            )
        )
        return VariantVerdict(variant, outcome, reason, rounds, None, None, None, 1.0, leaked)
    own_by_time = auc(ttfts(seen, Kind.OWN_REPEAT), ttfts(seen, Kind.OWN_FIRST))
    own_by_tokens = auc(cached(seen, Kind.OWN_FIRST), cached(seen, Kind.OWN_REPEAT))
    across = auc(ttfts(seen, Kind.CACHED_BY_OWNER), ttfts(seen, Kind.FRESH))
    bound = across.upper_bound(CONFIDENCE)
    outcome, reason = _outcome(own_by_time, own_by_tokens, across, leaked, rounds, power)
    return VariantVerdict(variant, outcome, reason, rounds, own_by_time, own_by_tokens, across, bound, leaked)


def _outcome(by_time: Auc, by_tokens: Auc, across: Auc, leaked: int, rounds: int, power: Power) -> tuple[Outcome, str]:
    bound = across.upper_bound(CONFIDENCE)
    if leaked:
        return Outcome.LEAK, _told(leaked)
    if by_tokens.value < CONTROL_AUC:
        return Outcome.BLIND, (
            f"the owner's own repeats were not served from the cache (AUC of cached tokens {by_tokens.value:.3f}, "
            f"{CONTROL_AUC:g} is needed): is caching off, or the pool too small?"
        )
    if by_time.value < CONTROL_AUC:
        return Outcome.BLIND, (
            f"the owner's own repeats could not be told by their times (AUC {by_time.value:.3f}, {CONTROL_AUC:g} is "
            "needed), so another tenant's could not have been told either: longer prompts or a quieter machine help"
        )
    if bound < power.limit:
        if rounds < power.num_samples:
            return Outcome.BLIND, f"it ended after {rounds} of {power.num_samples} rounds"
        return Outcome.PASSED, f"AUC at most {bound:.4f}, below {power.limit:g}"
    if across.distinguishability > 0.5 + (bound - across.distinguishability):
        return Outcome.LEAK, (
            f"the other tenant tells what the owner has cached: AUC {across.value:.4f}, at most {bound:.4f} where "
            f"{power.limit:g} is allowed"
        )
    return Outcome.BLIND, f"AUC at most {bound:.4f}, not below {power.limit:g}, and not surely above 0.5: repeat it"


def _told(leaked: int) -> str:
    return f"the other tenant was told of {leaked:,} cached tokens that were not its own"
