"""Every reason for which a router serves with less than usual is told by each who tells them."""

from __future__ import annotations

from services.admin import cluster_servicer
from services.cli import metrics, status
from services.console import marks
from services.router.condition import Degraded


def test_every_reason_has_its_words() -> None:
    reasons = {each.value for each in Degraded}
    assert set(status._DEGRADED) == set(marks._DEGRADED) == set(metrics._DEGRADED_REASONS) == reasons
    assert set(cluster_servicer._DEGRADED) == set(Degraded)
