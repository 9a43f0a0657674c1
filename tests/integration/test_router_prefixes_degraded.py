"""Lookups and pins while Redis is away, and once the control data is too old."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc
import pytest
from google.rpc.error_details_pb2 import RetryInfo

from services.cluster.valkey import EmbeddedValkey
from services.tenants.directory import CONTROL_AGE_BOUND_S
from tests.support.outages import SkewedClock, end
from tests.support.prefix_calls import lookup, matched, pin, pins, refusal, unpin, until_matched, warm
from tests.support.router_host import Cluster, detail_of, eventually_async, running_cluster


@pytest.fixture
def own_valkey(tmp_path: Path) -> Iterator[EmbeddedValkey]:
    """A server that the test may end."""
    with EmbeddedValkey.start(tmp_path / "v") as server:
        yield server


@pytest.fixture
def clock() -> SkewedClock:
    return SkewedClock()


@pytest.fixture
async def cluster(own_valkey: EmbeddedValkey, tmp_path: Path, clock: SkewedClock) -> AsyncIterator[Cluster]:
    async with running_cluster(own_valkey.urls, tmp_path / "r", ({}, {}), clock=clock) as made:
        yield made


async def test_without_redis_workers_are_asked_for_what_was_known_and_keep_pins(
    cluster: Cluster, own_valkey: EmbeddedValkey, clock: SkewedClock
) -> None:
    await warm(cluster.acme)
    await until_matched(cluster.acme, 96)
    before = await pin(cluster.acme, display_name="before")
    await end(own_valkey)
    assert await matched(cluster.acme) == 96, "by the router's copy of the index, confirmed by the worker"
    assert await matched(cluster.globex) == 0
    during = await pin(cluster.acme, display_name="during")
    assert [each.display_name for each in await pins(cluster.acme)] == ["before", "during"]
    absent = await refusal(pin(cluster.globex))
    assert absent.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert await unpin(cluster.acme, before.pin_id)

    clock.ahead_s = CONTROL_AGE_BOUND_S + 1
    assert (await lookup(cluster.acme)).matched_tokens == 0
    for error in (await refusal(pin(cluster.acme)), await refusal(warm(cluster.acme))):
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert "control data" in (error.details() or "")
        assert detail_of(error, RetryInfo).retry_delay.ToMilliseconds() > 0

    own_valkey.restart()

    async def recovered() -> bool:
        return await matched(cluster.acme) == 96

    await eventually_async(recovered)
    assert [each.pin_id for each in await pins(cluster.acme)] == [during.pin_id]
