"""Both tenants' clients against a real gRPC server."""

from __future__ import annotations

import pytest
from stemcache.v1 import inference_pb2 as pb

from services.client import (
    ApiInvalidRequestError,
    ApiUnavailableError,
    AsyncStemcacheClient,
    CacheHints,
    CacheMode,
    Chat,
    Delta,
    FinishReason,
    GenerationFinished,
    GenerationRequest,
    GenerationStarted,
    Sampling,
    StemcacheClient,
    Tokens,
)
from tests.support.scripted_api import UNAVAILABLE, Failure, ScriptedApi

INVALID = Failure(3, "the prompt is empty")


def _events() -> list[pb.GenerateStreamResponse]:
    started = pb.GenerationStarted(usage=pb.Usage(prompt_tokens=4), seed=3)
    finished = pb.GenerationFinished(samples=[pb.SampleFinish(finish_reason=pb.FINISH_REASON_STOP)])
    return [
        pb.GenerateStreamResponse(request_id="r", started=started),
        pb.GenerateStreamResponse(request_id="r", delta=pb.GenerationDelta(text="hi")),
        pb.GenerateStreamResponse(request_id="r", finished=finished),
    ]


def test_answer_becomes_values(api: ScriptedApi) -> None:
    with StemcacheClient(api.address, "key") as client:
        generation = client.generate(GenerationRequest("text"))
    assert generation.text == "hi"
    assert generation.completions[0].token_ids == (7, 8)
    assert generation.completions[0].finish_reason is FinishReason.LENGTH
    assert (generation.usage.cached_tokens, generation.usage.computed_tokens) == (3, 2)
    assert generation.timings.route_s == 0.25
    assert (generation.timings.preemptions, generation.timings.preempted_s) == (2, 1.5)
    assert (generation.timings.recompute_s, generation.timings.recomputed_tokens) == (0.5, 300)
    assert generation.timings.swap_s == 0.125
    assert generation.route.worker_id == "worker-0"


def test_request_reaches_the_server_as_asked(api: ScriptedApi) -> None:
    sampling = Sampling(temperature=0.5, max_tokens=0, stop=("END",), num_samples=2)
    request = GenerationRequest(
        Chat.of("hello", system="be brief"), sampling, "m", CacheMode.BYPASS, "user-1", request_id="mine"
    )
    with StemcacheClient(api.address, "key") as client:
        client.generate(request)
    (message,) = api.requests
    assert [each.role for each in message.prompt.chat.messages] == ["system", "user"]
    assert message.sampling_params.HasField("max_tokens")
    assert message.sampling_params.max_tokens == 0
    assert not message.sampling_params.HasField("top_k")
    assert message.sampling_params.n == 2
    assert message.cache_policy.mode == pb.CachePolicy.MODE_BYPASS
    assert (message.cache_policy.partition, message.request_id, message.model) == ("user-1", "mine", "m")
    assert api.metadata["authorization"] == "Bearer key"


def test_hints_reach_the_server(api: ScriptedApi) -> None:
    hints = CacheHints("chat-7", session_end=True, no_store=True, ttl_s=1.5)
    with StemcacheClient(api.address, "key") as client:
        client.generate(GenerationRequest("text", hints=hints))
    policy = api.requests[0].cache_policy
    assert (policy.session_id, policy.session_end, policy.no_store) == ("chat-7", True, True)
    assert policy.ttl.ToMilliseconds() == 1_500


def test_unavailable_is_retried_under_one_request_id(api: ScriptedApi) -> None:
    api.failures = [UNAVAILABLE, UNAVAILABLE]
    with StemcacheClient(api.address, "key") as client:
        client.generate(GenerationRequest("text"))
    ids = [each.request_id for each in api.requests]
    assert len(ids) == 3
    assert len(set(ids)) == 1
    assert ids[0]


def test_two_requests_have_two_ids(api: ScriptedApi) -> None:
    with StemcacheClient(api.address, "key") as client:
        client.generate(GenerationRequest("text"))
        client.generate(GenerationRequest("text"))
    assert api.requests[0].request_id != api.requests[1].request_id


def test_unavailable_for_good_is_raised(api: ScriptedApi) -> None:
    api.failures = [UNAVAILABLE] * 10
    with StemcacheClient(api.address, "key") as client, pytest.raises(ApiUnavailableError, match="no worker is ready"):
        client.generate(GenerationRequest("text"))
    assert len(api.requests) == 4


def test_bad_input_is_not_retried(api: ScriptedApi) -> None:
    api.failures = [INVALID]
    with StemcacheClient(api.address, "key") as client, pytest.raises(ApiInvalidRequestError):
        client.generate(GenerationRequest(""))
    assert len(api.requests) == 1


def test_stream_yields_events(api: ScriptedApi) -> None:
    api.events = _events()
    with StemcacheClient(api.address, "key") as client:
        events = list(client.stream(GenerationRequest("text")))
    assert [type(each) for each in events] == [GenerationStarted, Delta, GenerationFinished]


def test_closing_a_stream_cancels_the_request(api: ScriptedApi) -> None:
    api.events, api.hold_stream = _events()[:1], True
    with StemcacheClient(api.address, "key") as client:
        stream = client.stream(GenerationRequest("text"))
        next(stream)
        stream.close()  # type: ignore[attr-defined]
        assert api.stream_ended.wait(timeout=5)


def test_unknown_event_of_a_later_server_is_passed_over(api: ScriptedApi) -> None:
    api.events = [pb.GenerateStreamResponse(request_id="r"), *_events()]
    with StemcacheClient(api.address, "key") as client:
        assert len(list(client.stream(GenerationRequest("text")))) == 3


def test_reading_calls(api: ScriptedApi) -> None:
    with StemcacheClient(api.address, "key") as client:
        assert client.cancel("running")
        assert not client.cancel("other")
        assert client.tokenize(Tokens((1, 2))).token_ids == (1, 2)
        assert client.models()[0].block_size == 16


def test_no_server_is_unavailable() -> None:
    with StemcacheClient("127.0.0.1:9", "key") as client, pytest.raises(ApiUnavailableError):
        client.models()


@pytest.mark.parametrize("key", ["", "two words", "schlüssel", "line\nbreak"])
def test_credential_that_no_server_gave_out_is_refused(key: str) -> None:
    with pytest.raises(ValueError, match="copied whole"):
        StemcacheClient("127.0.0.1:9", key)


async def test_async_generates_and_retries(api: ScriptedApi) -> None:
    api.failures = [UNAVAILABLE]
    async with AsyncStemcacheClient(api.address, "key") as client:
        generation = await client.generate(GenerationRequest("text"))
    assert generation.text == "hi"
    assert len({each.request_id for each in api.requests}) == 1
    assert len(api.requests) == 2


async def test_async_stream_yields_events(api: ScriptedApi) -> None:
    api.events = _events()
    async with AsyncStemcacheClient(api.address, "key") as client:
        events = [event async for event in client.stream(GenerationRequest("text"))]
    assert [type(each) for each in events] == [GenerationStarted, Delta, GenerationFinished]


async def test_async_raises_the_same_tree(api: ScriptedApi) -> None:
    api.failures = [INVALID]
    async with AsyncStemcacheClient(api.address, "key") as client:
        with pytest.raises(ApiInvalidRequestError, match="the prompt is empty"):
            await client.generate(GenerationRequest(""))


async def test_async_closing_a_stream_cancels_the_request(api: ScriptedApi) -> None:
    api.events, api.hold_stream = _events()[:1], True
    async with AsyncStemcacheClient(api.address, "key") as client:
        stream = client.stream(GenerationRequest("text"))
        await anext(stream)
        await stream.aclose()  # type: ignore[attr-defined]
        assert api.stream_ended.wait(timeout=5)
