"""What an operator sees is what the statuses say, and what came between them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from services.client.admin_results import ClusterStatus
from services.console.cluster_view import ClusterView
from services.console.history import SMOOTH_SAMPLES, History
from tests.support.pictures import status, tenant, traffic, use, worker


class Course:
    """A history whose statuses come a second apart."""

    def __init__(self, max_samples: int = 180) -> None:
        self.history = History(max_samples)
        self.now_s = 100.0

    def take(self, taken: ClusterStatus) -> ClusterView:
        self.now_s += 1.0
        return self.history.take(taken, [tenant("acme"), tenant("globex")], 1_700_000_000 + self.now_s, self.now_s)


def test_the_first_picture_tells_hit_rates_since_the_start() -> None:
    view = Course().take(status(traffic=(traffic("acme", 2, 200, 50),)))
    assert (view.window_s, view.hit_rate, view.requests_per_s) == (0.0, 0.25, 0.0)
    assert {each.name: each.hit_rate for each in view.tenants} == {"acme": 0.25, "globex": None}


def test_later_ones_tell_what_came_in_between() -> None:
    course = Course()
    course.take(status(traffic=(traffic("acme", 2, 200, 0),)))
    view = course.take(status(traffic=(traffic("acme", 4, 400, 150), traffic("globex", 1, 100, 0))))
    assert (view.window_s, view.hit_rate, view.requests_per_s) == (1.0, 0.5, 3.0)
    assert {each.name: (each.hit_rate, each.requests_per_s) for each in view.tenants} == {
        "acme": (0.75, 2.0),
        "globex": (0.0, 1.0),
    }


def test_a_router_that_began_anew_counts_from_nothing() -> None:
    course = Course()
    course.take(status(traffic=(traffic("acme", 1_000, 100_000, 0),)))
    view = course.take(status(traffic=(traffic("acme", 1, 100, 80),)))
    assert view.hit_rate == 0.8


def test_evictions_are_those_of_one_life_of_a_worker() -> None:
    course = Course()

    def took(evicted: int, life: str) -> ClusterView:
        pressure = {"pressure": {"evicted_blocks": evicted}}
        uses = (use("acme", used_blocks=5, evicted_blocks=evicted),)
        return course.take(status(worker(uses=uses, incarnation=life, **pressure)))

    took(100, "one")
    assert took(106, "one").evicted_per_s == 6.0
    view = took(50, "two")
    assert view.evicted_per_s == 3.0  # 6 in two seconds: what the new life had evicted before is not known
    assert [each.evicted_per_s for each in view.tenants if each.name == "acme"] == [3.0]
    assert view.trends.evicted_per_s == (6.0, 0.0)


def test_hit_rates_have_gaps_where_nobody_asked() -> None:
    course = Course()
    course.take(status())
    course.take(status(traffic=(traffic("acme", 1, 100, 60),)))
    for _ in range(SMOOTH_SAMPLES):
        view = course.take(status(traffic=(traffic("acme", 1, 100, 60),)))
    assert view.trends.hit_rates == (0.6,) * SMOOTH_SAMPLES + (None,)
    assert [each.hit_rates for each in view.tenants] == [view.trends.hit_rates, ()]


def test_only_the_last_samples_are_kept() -> None:
    course = Course(max_samples=3)
    for number in range(6):
        view = course.take(status(worker(running_requests=number, waiting_requests=2 * number)))
    assert view.trends.running == (3, 4, 5)
    assert view.trends.waiting == (6, 8, 10)
    assert (view.running_requests, view.window_s) == (5, 3.0)


def test_parts_are_added_up_over_workers_and_tiers() -> None:
    lower = {"tiers": [{"tier": "host", "used_blocks": 30, "total_blocks": 50}]}
    uses = (
        use("acme", guaranteed_blocks=25, max_blocks=90, used_blocks=40, held_blocks=3, lent_blocks=2, host_blocks=7),
    )
    taken = status(worker("worker-0", uses, **lower), worker("worker-1", (), **lower))
    terms = [tenant("acme", 0.25, 0.9, host=(0.5, 1.0)), tenant("globex", 0.1)]
    view = History().take(taken, terms, 0.0, 0.0)
    acme, globex = view.tenants
    device, host = acme.tiers
    assert (device.guaranteed_blocks, device.max_blocks, device.used_blocks) == (50, 180, 40)
    assert (device.held_blocks, device.lent_blocks, device.borrowed_blocks) == (3, 2, 0)
    assert (host.tier, host.guaranteed_blocks, host.max_blocks, host.used_blocks) == ("host", 50, 100, 7)
    assert host.lent_blocks is None
    assert [(part.guaranteed_blocks, part.used_blocks) for part in globex.tiers] == [(20, 0), (10, 0)]


def test_who_borrows_is_told() -> None:
    taken = status(worker(uses=(use("gone", guaranteed_blocks=0, used_blocks=9),)))
    view = History().take(taken, [], 0.0, 0.0)
    assert [(each.name, each.tiers[0].borrowed_blocks) for each in view.tenants] == [("gone", 9)]


@pytest.mark.parametrize(
    ("fields", "mark"),
    [
        ({"draining": True}, "about to leave"),
        ({"audit": {"mismatches": 2}}, "ALARM: 2"),
        ({"quota_generation": 1}, "generation 1 of 3"),
        ({"tiers": [{"tier": "disk", "failed_blocks": 4}]}, "4 writes or reads"),
    ],
)
def test_what_is_wrong_with_a_worker_is_marked(fields: dict[str, object], mark: str) -> None:
    bad = worker(**({"quota_generation": 3} | fields))
    view = History().take(status(bad, worker("well", quota_generation=3), control_generation=3), [], 0.0, 0.0)
    assert mark in view.workers[0].marks[0]
    assert view.workers[1].marks == ()


def test_what_is_wrong_with_the_system_is_marked() -> None:
    taken = replace(status(), degraded_reasons=("index", "new-reason"), refused_workers=("worker-9: too old",))
    marks = History().take(taken, [], 0.0, 0.0).marks
    assert [mark.split(":")[0] for mark in marks] == ["degraded", "degraded", "refused", "no worker is ready"]
    assert "new-reason" in marks[1]
    assert History().take(status(worker()), [], 0.0, 0.0).marks == ()
