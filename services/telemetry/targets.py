"""Whom Prometheus should scrape, as its HTTP service discovery wants to be told. Pure.

A router knows all workers, wherever they run and whatever port they took: with one address of a router in Prometheus'
configuration all of them are found.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from cache_store.registry import WorkerRecord
from services.settings import Target

CONTENT_TYPE = "application/json"


def discovery(own: Target, others: Iterable[Target], records: Sequence[WorkerRecord]) -> str:
    """The router itself, those that it was told of, and workers that show metrics."""
    workers = [Target("worker", record.metrics_address) for record in records if record.metrics_address]
    groups = [{"targets": [each.address], "labels": {"role": each.role}} for each in (own, *others, *workers)]
    return json.dumps(groups)
