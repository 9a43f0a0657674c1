"""A local Ray as a part, without Ray."""

from __future__ import annotations

from services.cluster.parts import Health
from services.cluster.ray_part import RayPart


class FakeCluster:
    """Fails as a test says, and is well after a restart."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self.num_restarts = 0

    def failure(self) -> str | None:
        return self.reason

    def restart(self) -> None:
        self.num_restarts += 1
        self.reason = None


def test_a_running_ray_is_ready_and_left_alone() -> None:
    cluster = FakeCluster()
    part = RayPart(cluster)
    part.start()
    assert part.condition().health is Health.READY
    assert cluster.num_restarts == 0


def test_a_failed_ray_says_why_and_is_restarted() -> None:
    cluster = FakeCluster()
    part = RayPart(cluster)
    cluster.reason = "its raylet ended"
    assert part.condition().health is Health.FAILED
    assert part.condition().reason == "its raylet ended"
    part.start()
    assert part.condition().health is Health.READY
    assert cluster.num_restarts == 1
