"""Generation through the real stack: router, workers, Valkey, gRPC on loopback; exact, isolated, and told truly."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message
from stemcache.admin.v1 import admin_pb2
from stemcache.v1 import inference_pb2 as pb

from cache_store.tokens import unpack
from services.cluster.valkey import EmbeddedValkey
from services.router.routing import RECOMPUTE_WEIGHT
from tests.support.redis_servers import server_named
from tests.support.router_host import ADMIN_METADATA, MODEL, Cluster, running_cluster, tokens_request
from worker.config import NumBlocks

PROMPT = list(range(100, 180))


@pytest.fixture
async def cluster(request: pytest.FixtureRequest, valkey: EmbeddedValkey, tmp_path: Path) -> AsyncIterator[Cluster]:
    urls = server_named(request, "valkey").urls
    async with running_cluster(urls, tmp_path) as made:
        yield made


async def test_a_request_and_its_repetition(cluster: Cluster) -> None:
    cold = await cluster.acme.generate(tokens_request(PROMPT))
    warm = await cluster.acme.generate(tokens_request(PROMPT))
    assert warm.completions == cold.completions
    assert (cold.usage.prompt_tokens, cold.usage.cached_tokens, cold.usage.computed_tokens) == (80, 0, 80)
    assert (warm.usage.cached_tokens, warm.usage.computed_tokens) == (79, 1)
    assert cold.usage.completion_tokens == 8
    assert cold.completions[0].finish_reason == pb.FINISH_REASON_LENGTH
    assert len(unpack(cold.completions[0].token_ids.packed)) == 8
    assert cold.route.worker_id == "worker-0"
    assert (cold.route.attempts, cold.route.degraded) == (1, False)
    assert cold.request_id
    assert cold.request_id != warm.request_id


async def test_tenants_partitions_and_epochs_are_isolated_and_answers_equal(cluster: Cluster) -> None:
    first = await cluster.acme.generate(tokens_request(PROMPT))
    same = await cluster.acme.generate(tokens_request(PROMPT))
    other_tenant = await cluster.globex.generate(tokens_request(PROMPT))
    other_tenant_again = await cluster.globex.generate(tokens_request(PROMPT))
    other_partition = await cluster.acme.generate(tokens_request(PROMPT, partition="user-1"))
    other_partition_again = await cluster.acme.generate(tokens_request(PROMPT, partition="user-1"))
    await rotate(cluster, "acme")
    rotated = await cluster.acme.generate(tokens_request(PROMPT))
    rotated_again = await cluster.acme.generate(tokens_request(PROMPT))
    globex_after = await cluster.globex.generate(tokens_request(PROMPT))
    cold = [first, other_tenant, other_partition, rotated]
    warm = [same, other_tenant_again, other_partition_again, rotated_again, globex_after]
    assert [answer.usage.cached_tokens for answer in cold] == [0] * 4
    assert [answer.usage.cached_tokens for answer in warm] == [79] * 5
    assert all(answer.completions == first.completions for answer in cold + warm)


async def rotate(cluster: Cluster, tenant: str) -> None:
    request = admin_pb2.RotateEpochRequest(tenant=tenant)
    await cluster.tenant_admin.RotateEpoch(request, timeout=10.0, metadata=ADMIN_METADATA)


async def test_it_caches_state_and_not_answers(cluster: Cluster) -> None:
    request = tokens_request(PROMPT, temperature=1.0, max_tokens=16)
    answers = [await cluster.acme.generate(request) for _ in range(3)]
    assert len({answer.seed for answer in answers}) == 3
    assert len({answer.completions[0].token_ids.packed for answer in answers}) == 3
    assert all(answer.usage.computed_tokens >= 1 for answer in answers)
    again = await cluster.acme.generate(tokens_request(PROMPT, temperature=1.0, max_tokens=16, seed=answers[1].seed))
    assert again.completions == answers[1].completions


async def test_a_stream_is_the_answer_in_pieces(cluster: Cluster) -> None:
    whole = await cluster.acme.generate(tokens_request(PROMPT, max_tokens=40))
    events = [event async for event in cluster.acme.stream(tokens_request(PROMPT, max_tokens=40))]
    kinds = [event.WhichOneof("event") for event in events]
    assert kinds[0] == "started"
    assert kinds[-1] == "finished"
    assert set(kinds[1:-1]) == {"delta"}
    assert len({event.request_id for event in events}) == 1
    deltas = [event.delta for event in events[1:-1]]
    assert b"".join(delta.token_ids.packed for delta in deltas) == whole.completions[0].token_ids.packed
    assert "".join(delta.text for delta in deltas) == whole.completions[0].text
    assert events[0].started.usage.cached_tokens == 79
    finished = events[-1].finished
    assert [sample.finish_reason for sample in finished.samples] == [pb.FINISH_REASON_LENGTH]
    assert finished.usage.completion_tokens == 40
    assert finished.timings.receive_time.seconds > 0


async def test_samples_share_a_prompt_and_differ(cluster: Cluster) -> None:
    request = tokens_request(PROMPT, n=3, temperature=1.0, seed=5, max_tokens=12)
    answer = await cluster.acme.generate(request)
    assert [made.sample_index for made in answer.completions] == [0, 1, 2]
    assert len({made.token_ids.packed for made in answer.completions}) == 3
    assert answer.usage.completion_tokens == 36
    assert (await cluster.acme.generate(request)).completions == answer.completions
    single = await cluster.acme.generate(tokens_request(PROMPT, temperature=1.0, seed=5, max_tokens=12))
    assert single.completions[0] == answer.completions[0]


async def test_a_stop_string_over_token_borders_ends_its_sample_only(cluster: Cluster) -> None:
    request = tokens_request(PROMPT, n=3, temperature=1.0, seed=5, max_tokens=24)
    whole = await cluster.acme.generate(request)
    target = whole.completions[1].text
    stop = target[len(target) // 2 - 4 : len(target) // 2 + 4]
    assert not any(stop in made.text for made in (whole.completions[0], whole.completions[2]))
    request.sampling_params.stop.append(stop)
    stopped = await cluster.acme.generate(request)
    assert stopped.completions[0] == whole.completions[0]
    assert stopped.completions[2] == whole.completions[2]
    made = stopped.completions[1]
    assert made.finish_reason == pb.FINISH_REASON_STOP
    assert made.text == target[: target.index(stop)]
    assert whole.completions[1].token_ids.packed.startswith(made.token_ids.packed)
    assert len(made.token_ids.packed) < len(whole.completions[1].token_ids.packed)
    assert stopped.usage.completion_tokens == sum(len(each.token_ids.packed) // 4 for each in stopped.completions)
    events = [event async for event in cluster.acme.stream(request)]
    texts = [
        "".join(e.delta.text for e in events if e.HasField("delta") and e.delta.sample_index == i) for i in range(3)
    ]
    assert texts == [each.text for each in stopped.completions]


async def test_a_stop_string_of_the_only_sample_ends_the_workers_work(cluster: Cluster) -> None:
    whole = await cluster.acme.generate(tokens_request(PROMPT, max_tokens=30))
    stop = whole.completions[0].text[10:14]
    answer = await cluster.acme.generate(tokens_request(PROMPT, max_tokens=4_000, stop=[stop]))
    assert answer.completions[0].text == whole.completions[0].text[: whole.completions[0].text.index(stop)]
    assert answer.completions[0].finish_reason == pb.FINISH_REASON_STOP
    await cluster.nothing_left()


async def test_a_stop_token_is_in_the_tokens_and_not_in_the_text(cluster: Cluster) -> None:
    whole = (await cluster.acme.generate(tokens_request(PROMPT, max_tokens=30))).completions[0]
    tokens = unpack(whole.token_ids.packed)
    stopped = await cluster.acme.generate(tokens_request(PROMPT, max_tokens=30, stop_token_ids=[tokens[9]]))
    made = stopped.completions[0]
    assert unpack(made.token_ids.packed) == tokens[: tokens.index(tokens[9]) + 1]
    assert made.finish_reason == pb.FINISH_REASON_STOP
    assert whole.text.startswith(made.text)
    later = await cluster.acme.generate(
        tokens_request(PROMPT, max_tokens=30, min_tokens=20, stop_token_ids=[tokens[9]])
    )
    assert later.usage.completion_tokens >= 20


async def test_text_and_chat_are_encoded_by_the_models_tokenizer(cluster: Cluster) -> None:
    chat = pb.Prompt(chat=pb.ChatPrompt(messages=[pb.ChatMessage(role="user", content="héllo")]))
    tokenized = await call(cluster, "Tokenize", pb.TokenizeRequest(prompt=chat))
    text = await call(cluster, "Detokenize", pb.DetokenizeRequest(token_ids=tokenized.token_ids))
    assert text.text == "<|turn|>user\nhéllo<|turn|>assistant\n"
    assert tokenized.block_count == len(tokenized.token_ids.packed) // 4 // 16
    request = pb.GenerateRequest(prompt=chat, sampling_params=pb.SamplingParams(max_tokens=4, ignore_eos=True))
    by_chat = await cluster.acme.generate(request)
    by_tokens = await cluster.acme.generate(tokens_request(unpack(tokenized.token_ids.packed), max_tokens=4))
    assert by_chat.completions == by_tokens.completions


async def call(cluster: Cluster, method: str, request: Message) -> Any:
    """Any unary method as acme."""
    return await getattr(cluster.acme.stub, method)(request, timeout=10.0, metadata=cluster.acme.metadata)


async def test_models_are_listed_with_their_geometry(cluster: Cluster) -> None:
    (model,) = (await call(cluster, "ListModels", pb.ListModelsRequest())).models
    assert (model.name, model.block_size, model.max_model_len, model.vocab_size) == (MODEL, 16, 8_192, 32_000)
    assert model.kv_bytes_per_token > 0


async def test_without_max_tokens_as_much_as_fits_is_made_at_most_512(cluster: Cluster) -> None:
    request = tokens_request(PROMPT)
    request.sampling_params.ClearField("max_tokens")
    assert (await cluster.acme.generate(request)).usage.completion_tokens == 512


async def test_cache_modes(cluster: Cluster) -> None:
    async def cached(mode: int) -> int:
        answer = await cluster.acme.generate(tokens_request(PROMPT, mode=mode))
        return answer.usage.cached_tokens

    modes = pb.CachePolicy
    assert await cached(modes.MODE_BYPASS) == 0
    assert await cached(modes.MODE_READ_ONLY) == 0
    assert await cached(modes.MODE_READ_WRITE) == 0
    assert await cached(modes.MODE_READ_ONLY) == 79
    assert await cached(modes.MODE_BYPASS) == 0


async def test_the_operator_sees_the_record_with_the_terms(cluster: Cluster) -> None:
    await cluster.acme.generate(tokens_request(PROMPT))
    answer = await cluster.acme.generate(tokens_request(PROMPT, request_id="mine"))
    record = await cluster.record(cluster.acme, "mine")
    assert (record.status, record.model, record.attempts, record.degraded) == ("OK", MODEL, 1, False)
    assert (record.prompt_tokens, record.cached_tokens, record.completion_tokens) == (80, 79, 8)
    assert record.receive_time == answer.timings.receive_time
    (term,) = record.terms
    assert term.worker_id == "worker-0"
    assert term.cost == pytest.approx(term.queue_s + (1 + RECOMPUTE_WEIGHT) * term.prefill_s)
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await cluster.record(cluster.globex, "mine")
    assert error.value.code() is grpc.StatusCode.NOT_FOUND


async def test_an_answer_says_what_it_lost_to_others(
    request: pytest.FixtureRequest, valkey: EmbeddedValkey, tmp_path: Path
) -> None:
    """Eight blocks for two answers of seven: one has to give way, and is exact all the same."""
    crowded: dict[str, Any] = {"pool": NumBlocks(8), "digest_step_s": 0.002, "digest_token_s": 0.001}
    async with running_cluster(server_named(request, "valkey").urls, tmp_path, [crowded]) as cluster:
        prompts = [list(range(start, start + 32)) for start in (100, 200)]
        requests = [tokens_request(prompt, max_tokens=70, request_id=f"r{prompt[0]}") for prompt in prompts]
        answers = await asyncio.gather(*(cluster.acme.generate(each) for each in requests))
        (lost,) = (answer for answer in answers if answer.timings.preemptions)
        record = await cluster.record(cluster.acme, lost.request_id)
        repeated = [await cluster.acme.generate(tokens_request(prompt, max_tokens=70)) for prompt in prompts]
    timings = lost.timings
    assert timings.recomputed_tokens > 0
    assert timings.preempted_duration.ToNanoseconds() > 0
    assert timings.recompute_duration.ToNanoseconds() > 0
    assert timings.swap_duration.ToNanoseconds() == 0
    assert record.preempted_duration == timings.preempted_duration
    assert record.recompute_duration == timings.recompute_duration
    assert (record.preemptions, record.recomputed_tokens) == (timings.preemptions, timings.recomputed_tokens)
    assert [answer.completions for answer in repeated] == [answer.completions for answer in answers]


async def test_the_operator_sees_the_cluster(cluster: Cluster) -> None:
    status = await cluster.cluster_admin.GetStatus(admin_pb2.GetStatusRequest(), timeout=10.0, metadata=ADMIN_METADATA)
    (worker,) = status.workers
    assert (worker.worker_id, worker.address) == ("worker-0", cluster.workers[0].address)
    assert worker.total_blocks == 512
    assert not status.degraded
    assert not status.refused_workers
    assert status.control_generation > 0
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await cluster.cluster_admin.GetStatus(
            admin_pb2.GetStatusRequest(), timeout=10.0, metadata=cluster.acme.metadata
        )
    assert error.value.code() is grpc.StatusCode.UNAUTHENTICATED
