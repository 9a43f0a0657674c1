"""Fences at a worker's edge, in time: what is too old is not relied on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from types import MappingProxyType

import pytest

from cache_store.clock import ManualClock, SystemClock
from cache_store.errors import UnavailableError
from cache_store.fence import FenceOrder
from cache_store.index import Incarnation
from cache_store.request_token import RequestClaims
from services.tenants.directory import CONTROL_AGE_BOUND_S
from services.tenants.quota_publisher import PUBLISH_S
from tests.support.fences import fenced_domain, make_fence, make_table
from tests.support.scripted_engine import ScriptedEngine
from worker.engine_thread import EngineThread
from worker.rpc_purge import MAX_READ_AGE_S, REVOKED_AFTER_S, PurgeCalls

ME = Incarnation("1" * 32)
FENCE = make_fence()
ORDER: FenceOrder = FENCE.order
REQUEST = RequestClaims(fenced_domain(FENCE), "r", ME, 0.0, ORDER, 5)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def purges(clock: ManualClock) -> AsyncIterator[PurgeCalls]:
    thread = EngineThread(ScriptedEngine(), lambda _: None, SystemClock())
    thread.start()
    yield PurgeCalls(thread, ME, b"k" * 32, clock)
    await thread.stop(5)


async def test_who_has_never_read_serves_without_reuse_soon(purges: PurgeCalls, clock: ManualClock) -> None:
    clock.advance(MAX_READ_AGE_S)
    assert purges.admits(REQUEST)
    clock.advance(0.1)
    assert not purges.admits(REQUEST)
    purges.note_read()  # that nothing was ever published
    assert purges.admits(REQUEST)


async def test_who_was_away_serves_without_reuse_until_it_has_read_again(
    purges: PurgeCalls, clock: ManualClock
) -> None:
    await purges.take(make_table(5, FENCE))
    purges.note_read()
    clock.advance(MAX_READ_AGE_S)
    assert purges.admits(REQUEST)
    clock.advance(0.1)
    assert not purges.admits(REQUEST)
    purges.note_read()
    assert purges.admits(REQUEST)


def test_a_worker_that_is_cut_off_stops_before_a_purge_is_said_to_be_complete() -> None:
    assert MAX_READ_AGE_S + 2 * PUBLISH_S <= CONTROL_AGE_BOUND_S


async def test_a_router_that_has_long_missed_that_a_key_was_revoked_is_not_believed(
    purges: PurgeCalls, clock: ManualClock
) -> None:
    table = replace(make_table(5, FENCE), revoked_keys=MappingProxyType({FENCE.tenant: 2}))
    await purges.take(table)
    clock.advance(REVOKED_AFTER_S - 0.1)
    purges.require_current(REQUEST)
    clock.advance(0.1)
    with pytest.raises(UnavailableError, match="ask another router"):
        purges.require_current(replace(REQUEST, num_revoked_keys=1))
    purges.require_current(replace(REQUEST, num_revoked_keys=2))
