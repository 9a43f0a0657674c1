"""isolation.json: what an isolation test found, with every time that it saw, so that anybody can judge anew."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from services.loadtest.isolation.assertion import Assertion
from services.loadtest.isolation.auc import Auc
from services.loadtest.isolation.samples import Kind, Variant
from services.loadtest.isolation.verdict import Outcome, VariantVerdict
from services.loadtest.json_codec import from_json, to_json
from services.loadtest.results_folder import read_document, write_document

ISOLATION = "isolation.json"
SCHEMA_VERSION = 2


@dataclass(frozen=True, slots=True)
class VariantRecord:
    """One variant."""

    variant: Variant
    outcome: Outcome
    reason: str
    samples: int
    """Of either kind."""
    prompt_tokens: int
    own_auc_by_time: float | None
    """By which a tenant's repeats are told from its first requests."""
    own_auc_by_tokens: float | None
    across_auc: float | None
    """By which a tenant tells what the other one has cached."""
    across_bound: float
    """Upper bound of the latter, in either direction."""
    leaked_tokens: int
    ttft_ms: Mapping[str, tuple[float, ...]]
    """By Kind, in the order in which they were answered."""


@dataclass(frozen=True, slots=True)
class IsolationRecord:
    """The test."""

    schema_version: int
    model: str
    outcome: Outcome
    reason: str
    limit: float
    """Below which the bound has to be."""
    samples: int
    """Of either kind in each variant, as planned."""
    power: str
    """In words."""
    seed: int
    variants: tuple[VariantRecord, ...]


def record_of(found: Assertion, model: str) -> IsolationRecord:
    """What is kept of a test."""
    power = found.verdict.power
    return IsolationRecord(
        schema_version=SCHEMA_VERSION,
        model=model,
        outcome=found.verdict.outcome,
        reason=found.reason,
        limit=power.limit,
        samples=power.num_samples,
        power=power.text(),
        seed=found.wanted.seed,
        variants=tuple(_variant(each, found) for each in found.verdict.variants),
    )


def write_isolation(folder: Path, record: IsolationRecord) -> None:
    """Into a run's folder."""
    write_document(folder / ISOLATION, to_json(record))


def read_isolation(folder: Path) -> IsolationRecord | None:
    """None where the folder has none. Raises InvalidRequestError where it is of another kind."""
    path = folder / ISOLATION
    return from_json(IsolationRecord, read_document(path), str(path)) if path.exists() else None


def _variant(verdict: VariantVerdict, found: Assertion) -> VariantRecord:
    times: dict[str, tuple[float, ...]] = {
        str(kind): tuple(
            round(each.answer.ttft_s * 1e3, 4)
            for each in found.observations
            if each.kind is kind and each.variant is verdict.variant
        )
        for kind in Kind
    }
    return VariantRecord(
        variant=verdict.variant,
        outcome=verdict.outcome,
        reason=verdict.reason,
        samples=verdict.num_samples,
        prompt_tokens=max(each.answer.prompt_tokens for each in found.observations if each.variant is verdict.variant),
        own_auc_by_time=_value(verdict.own_by_time),
        own_auc_by_tokens=_value(verdict.own_by_tokens),
        across_auc=_value(verdict.across_by_time),
        across_bound=verdict.across_bound,
        leaked_tokens=verdict.leaked_tokens,
        ttft_ms=times,
    )


def _value(found: Auc | None) -> float | None:
    return None if found is None else found.value
