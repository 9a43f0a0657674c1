"""Streams whose router is lost while it answers: they go on at another one, and their readers see one answer."""

from __future__ import annotations

from collections.abc import Sequence

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo
from hypothesis import given
from hypothesis import strategies as st
from stemcache.v1 import inference_pb2 as pb

from cache_store.tokens import pack
from services.client import (
    ApiAbortedError,
    ApiLimitError,
    ApiUnavailableError,
    AsyncStemcacheClient,
    Delta,
    ErrorDetails,
    GenerationEvent,
    GenerationFinished,
    GenerationRequest,
    GenerationStarted,
    Sampling,
    StemcacheClient,
    Tokens,
)
from services.client.unbroken import MAX_REPEATS, UnbrokenStream
from tests.support.scripted_api import UNAVAILABLE, Failure, ScriptedApi

ABORTED = Failure(10, "the worker was lost")
STARTED = pb.GenerateStreamResponse(request_id="r", started=pb.GenerationStarted(seed=3))
FINISHED = pb.GenerateStreamResponse(request_id="r", finished=pb.GenerationFinished())
REQUEST = GenerationRequest("text", request_id="r")


def _delta(text: str, token_ids: Sequence[int], sample_index: int = 0) -> pb.GenerateStreamResponse:
    tokens = pb.TokenIds(packed=pack(token_ids))
    delta = pb.GenerationDelta(sample_index=sample_index, text=text, token_ids=tokens)
    return pb.GenerateStreamResponse(request_id="r", delta=delta)


def _limit(retry_after_s: float) -> Failure:
    retry = RetryInfo()
    retry.retry_delay.FromMilliseconds(round(retry_after_s * 1_000))
    return Failure(8, "your tenant has as many requests as it may", (retry,))


def _lost() -> ApiUnavailableError:
    return ApiUnavailableError(grpc.StatusCode.UNAVAILABLE, "gone", ErrorDetails())


WHOLE = [STARTED, _delta("one two", (7, 8)), FINISHED]


def test_its_reader_sees_one_answer(api: ScriptedApi) -> None:
    api.first_events, api.last_failure, api.events = [[STARTED, _delta("one", (7,))]], [UNAVAILABLE], WHOLE
    with StemcacheClient(api.address, "key") as client:
        events = list(client.stream(REQUEST))
    assert [type(each) for each in events] == [GenerationStarted, Delta, Delta, GenerationFinished]
    assert events[1:3] == [Delta("r", 0, "one", (7,)), Delta("r", 0, " two", (8,))]
    first, second = api.requests
    assert first == second


async def test_so_does_the_reader_of_an_event_loop(api: ScriptedApi) -> None:
    api.first_events, api.last_failure, api.events = [[STARTED, _delta("one", (7,))]], [UNAVAILABLE], WHOLE
    async with AsyncStemcacheClient(api.address, "key") as client:
        events = [event async for event in client.stream(REQUEST)]
    assert events[1:3] == [Delta("r", 0, "one", (7,)), Delta("r", 0, " two", (8,))]


def test_it_goes_on_so_often_and_not_for_ever(api: ScriptedApi) -> None:
    api.events, api.last_failure = [STARTED, _delta("one", (7,))], [UNAVAILABLE] * 10
    with StemcacheClient(api.address, "key") as client:
        stream = client.stream(REQUEST)
        assert [next(stream), next(stream)][1] == Delta("r", 0, "one", (7,))
        with pytest.raises(ApiUnavailableError):
            next(stream)
    assert len(api.requests) == 1 + MAX_REPEATS


@pytest.mark.parametrize("other", [_delta("ona", (7,)), _delta("one", (9,)), FINISHED])
def test_another_answer_is_none(api: ScriptedApi, other: pb.GenerateStreamResponse) -> None:
    api.first_events, api.last_failure, api.events = [[STARTED, _delta("one", (7,))]], [UNAVAILABLE], [STARTED, other]
    with StemcacheClient(api.address, "key") as client, pytest.raises(ApiAbortedError) as caught:
        list(client.stream(REQUEST))
    (partial,) = caught.value.details.partial
    assert (partial.text, partial.token_ids) == ("one", (7,))


def test_a_worker_that_is_lost_is_the_routers_matter(api: ScriptedApi) -> None:
    api.events, api.last_failure = [STARTED], [ABORTED]
    with StemcacheClient(api.address, "key") as client, pytest.raises(ApiAbortedError):
        list(client.stream(REQUEST))
    assert len(api.requests) == 1


def test_a_router_that_stops_sends_the_stream_to_another_one(api: ScriptedApi) -> None:
    """Its drain was over before the stream was: it says when to come again, where a lost worker says nothing."""
    stopped = Failure(10, "this router stopped", (RetryInfo(retry_delay=Duration(seconds=1)),))
    api.first_events, api.last_failure, api.events = [[STARTED, _delta("one", (7,))]], [stopped], WHOLE
    with StemcacheClient(api.address, "key") as client:
        events = list(client.stream(REQUEST))
    assert events[1:3] == [Delta("r", 0, "one", (7,)), Delta("r", 0, " two", (8,))]


@pytest.mark.parametrize("failure", [UNAVAILABLE, ABORTED])
def test_what_is_lost_after_the_end_is_not_asked_for_again(api: ScriptedApi, failure: Failure) -> None:
    """The reader has the whole answer; only the call's status did not come."""
    api.events, api.last_failure = WHOLE, [failure]
    with StemcacheClient(api.address, "key") as client:
        events = list(client.stream(REQUEST))
    assert [type(each) for each in events] == [GenerationStarted, Delta, GenerationFinished]
    assert len(api.requests) == 1


async def test_nor_is_it_on_an_event_loop(api: ScriptedApi) -> None:
    api.events, api.last_failure = WHOLE, [UNAVAILABLE]
    async with AsyncStemcacheClient(api.address, "key") as client:
        events = [event async for event in client.stream(REQUEST)]
    assert [type(each) for each in events] == [GenerationStarted, Delta, GenerationFinished]
    assert len(api.requests) == 1


def test_a_cancel_on_the_way_is_no_other_answer(api: ScriptedApi) -> None:
    """The other router has not made yet what the reader has when the request is cancelled there."""
    end = pb.SampleFinish(sample_index=0, finish_reason=pb.FINISH_REASON_CANCELLED)
    cancelled = pb.GenerateStreamResponse(request_id="r", finished=pb.GenerationFinished(samples=[end]))
    api.first_events, api.last_failure = [[STARTED, _delta("one", (7,))]], [UNAVAILABLE]
    api.events = [STARTED, cancelled]
    with StemcacheClient(api.address, "key") as client:
        events = list(client.stream(REQUEST))
    assert [type(each) for each in events] == [GenerationStarted, Delta, GenerationFinished]


@pytest.mark.parametrize("num_refused", [1, 3])
def test_the_place_of_its_own_lost_call_is_waited_for(api: ScriptedApi, num_refused: int) -> None:
    api.first_events = [[STARTED, _delta("one", (7,))], *([[]] * num_refused)]
    api.last_failure, api.events = [UNAVAILABLE, *([_limit(0.01)] * num_refused)], WHOLE
    with StemcacheClient(api.address, "key") as client:
        events = list(client.stream(REQUEST))
    assert events[1:3] == [Delta("r", 0, "one", (7,)), Delta("r", 0, " two", (8,))]
    assert len(api.requests) == 2 + num_refused


def test_a_place_is_waited_for_as_long_as_the_deadline_allows(api: ScriptedApi) -> None:
    api.first_events, api.last_failure = [[STARTED]], [UNAVAILABLE, _limit(60.0)]
    with StemcacheClient(api.address, "key", timeout_s=20.0) as client, pytest.raises(ApiLimitError):
        list(client.stream(REQUEST))
    assert len(api.requests) == 2


def test_a_limit_that_was_there_before_is_told_at_once(api: ScriptedApi) -> None:
    api.events, api.last_failure = [STARTED], [_limit(0.01)]
    with StemcacheClient(api.address, "key") as client, pytest.raises(ApiLimitError):
        list(client.stream(REQUEST))
    assert len(api.requests) == 1


def test_drawn_tokens_are_drawn_with_one_seed(api: ScriptedApi) -> None:
    api.first_events, api.last_failure, api.events = [[STARTED]], [UNAVAILABLE], WHOLE
    with StemcacheClient(api.address, "key") as client:
        list(client.stream(GenerationRequest("text", Sampling(temperature=1.0))))
        list(client.stream(GenerationRequest("text", Sampling(temperature=1.0))))
        list(client.stream(GenerationRequest("text", Sampling(temperature=1.0, seed=5))))
        list(client.stream(GenerationRequest("text")))
    first, second, another, named, greedy = [each.sampling_params for each in api.requests]
    assert first.HasField("seed")
    assert first.seed == second.seed
    assert len({first.seed, another.seed, named.seed}) == 3
    assert named.seed == 5
    assert not greedy.HasField("seed")


def test_a_callers_own_repeat_is_the_same_request(api: ScriptedApi) -> None:
    """By its id, streamed or not, also where tokens are drawn: it attaches, and is not refused as another body."""
    api.events = WHOLE
    request = GenerationRequest("text", Sampling(temperature=1.0), request_id="r")
    with StemcacheClient(api.address, "key") as client:
        list(client.stream(request))
        list(client.stream(request))
        client.generate(request)
    first, second, whole = api.requests
    assert first == second == whole


def test_the_calls_share_one_deadline() -> None:
    stream = UnbrokenStream(REQUEST, timeout_s=0.0)
    stream.take(STARTED)
    with pytest.raises(ApiUnavailableError):
        stream.lose(_lost())


PIECES = st.lists(st.tuples(st.integers(0, 1), st.text(max_size=3), st.lists(st.integers(0, 9), max_size=3)))


@given(PIECES, st.lists(st.tuples(st.integers(0, 20), st.integers(1, 3)), max_size=MAX_REPEATS))
def test_however_often_it_is_cut(pieces: list[tuple[int, str, list[int]]], cuts: list[tuple[int, int]]) -> None:
    """Each call tells the answer from the start, in other pieces."""
    samples = {index: _whole(pieces, index) for index in (0, 1)}
    stream = UnbrokenStream(GenerationRequest(Tokens((1,))), timeout_s=60.0)
    seen: list[GenerationEvent] = []

    def tell(num_most: int | None, step: int) -> None:
        told = [STARTED, *_cut(samples, step), FINISHED]
        seen.extend(event for each in told[:num_most] if (event := stream.take(each)) is not None)

    tell(1, 1)
    for num_most, step in cuts:
        tell(min(num_most, 1 + len(_cut(samples, step))), step)
        stream.lose(_lost())
    tell(None, 2)
    deltas = [each for each in seen if isinstance(each, Delta)]
    for index, (text, token_ids) in samples.items():
        assert "".join(each.text for each in deltas if each.sample_index == index) == text
        assert [token for each in deltas if each.sample_index == index for token in each.token_ids] == token_ids
    assert [type(each) for each in (seen[0], seen[-1])] == [GenerationStarted, GenerationFinished]
    assert sum(not isinstance(each, Delta) for each in seen) == 2


def _whole(pieces: list[tuple[int, str, list[int]]], index: int) -> tuple[str, list[int]]:
    own = [(text, token_ids) for at, text, token_ids in pieces if at == index]
    return "".join(text for text, _ in own), [token for _, token_ids in own for token in token_ids]


def _cut(samples: dict[int, tuple[str, list[int]]], step: int) -> list[pb.GenerateStreamResponse]:
    return [
        _delta(text[at : at + step], token_ids[at : at + step], index)
        for index, (text, token_ids) in samples.items()
        for at in range(0, max(len(text), len(token_ids)), step)
    ]
