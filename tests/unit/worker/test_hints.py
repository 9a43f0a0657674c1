"""Hints of a routed request: from the message to the engine, and what the engine makes of a time to live."""

from __future__ import annotations

import math

import pytest
from google.protobuf.duration_pb2 import Duration
from stemcache.worker.v1 import worker_pb2

from cache_store.clock import ManualClock
from cache_store.domain import Domain, Epoch
from cache_store.errors import InvalidRequestError
from cache_store.events import BlockChange
from cache_store.index import Incarnation
from cache_store.request_token import RequestClaims
from cache_store.tokens import pack
from tests.support.domains import make_domain
from tests.support.engines import ACME, GLOBEX, Bench, sampling
from worker.digest_runner import digest_model
from worker.requests import EngineRequest, RequestKey
from worker.rpc_request import to_engine


def routed(domain: Domain = ACME, **hints: object) -> EngineRequest:
    message = worker_pb2.ExecuteRequest(
        prompt=pack([1, 2]), sampling=worker_pb2.TokenSampling(top_p=1.0, max_tokens=1, n=1)
    )
    message.MergeFrom(worker_pb2.ExecuteRequest(**hints))  # type: ignore[arg-type] - fields of the message
    claims = RequestClaims(domain, "r", Incarnation("1" * 32), ManualClock().unix_s(), (0, Epoch(""), 0), 1)
    return to_engine(message, claims, RequestKey(1), digest_model())


def test_absent_hints_bind_nothing() -> None:
    request = routed()
    assert (request.session, request.session_end, request.ttl_s) == (b"", False, math.inf)


def test_hints_arrive() -> None:
    request = routed(session_id="s", session_end=True, ttl=Duration(seconds=1, nanos=500_000_000))
    assert request.session.endswith(b"s")
    assert (request.session_end, request.ttl_s) == (True, 1.5)


def test_a_session_is_a_name_inside_its_domain() -> None:
    domains = [ACME, GLOBEX, make_domain("acme", partition="p"), make_domain("acme", epoch="e2")]
    assert len({routed(domain, session_id="s").session for domain in domains}) == len(domains)
    assert routed(session_id="s").session == routed(session_id="s").session != routed(session_id="t").session


@pytest.mark.parametrize(
    ("field", "hints"),
    [
        ("session_id", {"session_id": "é" * 65}),
        ("ttl", {"ttl": Duration(nanos=999_999_999)}),
        ("ttl", {"ttl": Duration(seconds=30 * 86_400 + 1)}),
        ("ttl", {"ttl": Duration(seconds=-1)}),
    ],
)
def test_hints_out_of_bounds_are_refused_by_field(field: str, hints: dict[str, object]) -> None:
    with pytest.raises(InvalidRequestError) as error:
        routed(**hints)
    assert error.value.field == field


def test_an_idle_engine_lets_blocks_go_when_their_time_is_over() -> None:
    bench = Bench()
    bench.answer(range(16), sampling(1), ttl_s=10)
    bench.answer(range(16), sampling(1), domain=GLOBEX)
    bench.engine.drain_events()
    bench.clock.advance(10)
    bench.engine.tick()
    (event,) = bench.engine.drain_events()
    assert (event.domain_tag, event.change, len(event.digests)) == (ACME.tag, BlockChange.REMOVED, 4 * 16)
    assert bench.engine.load().used_blocks == 4
    assert [bench.answer(range(16), domain=domain).cached_tokens for domain in (ACME, GLOBEX)] == [0, 15]
    bench.assert_exact(*bench.requests)
