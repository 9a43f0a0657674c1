"""Metric families as values: what a process shows, by the names and in the units of Prometheus. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from cache_store.telemetry.histogram import Histogram

Labels = tuple[tuple[str, str], ...]
"""Names and values, in a fixed order."""

NO_LABELS: Labels = ()


class FamilyKind(StrEnum):
    """How values of a family behave."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Sample:
    """One value."""

    labels: Labels
    value: float


@dataclass(frozen=True, slots=True)
class Buckets:
    """One histogram, as of now."""

    labels: Labels
    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    """By bucket, not added up; one more than bounds."""
    total: float


@dataclass(frozen=True, slots=True)
class Family:
    """All series of one name."""

    name: str
    """Full: counters end with `_total`."""
    kind: FamilyKind
    text: str
    """What it is, in one sentence."""
    samples: tuple[Sample | Buckets, ...]


def gauge(name: str, text: str, value: float, labels: Labels = NO_LABELS) -> Family:
    """One value that goes up and down."""
    return Family(name, FamilyKind.GAUGE, text, (Sample(labels, value),))


def counter(name: str, text: str, value: float, labels: Labels = NO_LABELS) -> Family:
    """One value that only grows; `name` ends with `_total`."""
    return Family(name, FamilyKind.COUNTER, text, (Sample(labels, value),))


def gauges(name: str, text: str, label: str, values: Mapping[str, float], labels: Labels = NO_LABELS) -> Family:
    """One value for each value of a label; `labels` stand before it."""
    return Family(name, FamilyKind.GAUGE, text, _samples(label, values, labels))


def counters(name: str, text: str, label: str, values: Mapping[str, float], labels: Labels = NO_LABELS) -> Family:
    """As `gauges`, of values that only grow."""
    return Family(name, FamilyKind.COUNTER, text, _samples(label, values, labels))


def histogram(name: str, text: str, counted: Histogram, labels: Labels = NO_LABELS) -> Family:
    """A copy of a histogram."""
    buckets = Buckets(labels, counted.bounds, tuple(counted.counts), counted.total)
    return Family(name, FamilyKind.HISTOGRAM, text, (buckets,))


def family(name: str, kind: FamilyKind, text: str, values: Iterable[tuple[Labels, float]]) -> Family:
    """Any labels."""
    return Family(name, kind, text, tuple(Sample(labels, value) for labels, value in values))


def _samples(label: str, values: Mapping[str, float], labels: Labels) -> tuple[Sample, ...]:
    return tuple(Sample((*labels, (label, each)), value) for each, value in values.items())
