"""What a supervisor shows of itself: its parts, and whether the head of Ray answers."""

from __future__ import annotations

import socket

import pytest

from cache_store.clock import SystemClock
from cache_store.telemetry.listen import MetricsListen
from services.cluster.supervision import Supervisor
from services.cluster.up_metrics import shown
from tests.support.scrapes import scrape
from tests.support.scripted_part import ScriptedPart

ANSWERS = "stemcache_ray_head_answers"


async def test_whether_the_head_answers_is_asked_at_each_scrape() -> None:
    with socket.create_server(("127.0.0.1", 0)) as head:
        address = f"127.0.0.1:{head.getsockname()[1]}"
        with shown(MetricsListen(), address) as metrics:
            metrics.supervisor = Supervisor([[ScriptedPart("worker-1", [])]], SystemClock())
            there = await scrape(metrics.address)
            head.close()
            gone = await scrape(metrics.address)
    assert (there.of(ANSWERS), gone.of(ANSWERS)) == (1, 0)
    assert gone.of("stemcache_part_starts_total", part="worker-1") == 0
    assert gone.of("process_resident_memory_bytes") > 0


async def test_where_no_ray_is_anothers_nothing_is_said_of_it() -> None:
    with shown(MetricsListen()) as metrics:
        assert ANSWERS not in (await scrape(metrics.address)).text


def test_nothing_is_shown_where_that_is_not_wanted() -> None:
    with shown(None) as metrics:
        assert metrics.address == ""


@pytest.mark.parametrize("address", ["[::1]:1", "no-such-host.invalid:1"])
async def test_a_head_that_is_nowhere_does_not_answer(address: str) -> None:
    with shown(MetricsListen(), address) as metrics:
        assert (await scrape(metrics.address)).of(ANSWERS) == 0
