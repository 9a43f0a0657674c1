"""The hand-over of one request's outputs: order, coalescing, ends."""

from __future__ import annotations

import asyncio

import pytest

from cache_store.errors import WorkerLostError
from cache_store.tokens import pack
from cache_store.usage import CachedTokens
from worker.outbox import Outbox, SampleTokens
from worker.requests import Failed, Finish, Finished, Generated, RequestKey, Started

KEY = RequestKey(1)
FINISHED = Finished(KEY, 0.1, 0.2, 0.3, 0)


async def test_tokens_of_several_steps_come_as_one_item_per_sample() -> None:
    outbox = Outbox()
    for output in (
        Started(KEY, CachedTokens(4)),
        Generated(KEY, 0, (1,), None),
        Generated(KEY, 1, (7,), None),
        Generated(KEY, 0, (2, 3), Finish.STOP),
    ):
        outbox.put(output)
    assert await outbox.take() == [
        Started(KEY, CachedTokens(4)),
        SampleTokens(0, pack([1, 2, 3]), Finish.STOP),
        SampleTokens(1, pack([7]), None),
    ]
    outbox.put(Generated(KEY, 1, (8,), Finish.LENGTH))
    outbox.put(FINISHED)
    assert await outbox.take() == [SampleTokens(1, pack([8]), Finish.LENGTH), FINISHED]


async def test_a_reader_waits_for_the_next_output() -> None:
    outbox = Outbox()
    taking = asyncio.create_task(outbox.take())
    await asyncio.sleep(0)
    assert not taking.done()
    outbox.put(Started(KEY, CachedTokens(0)))
    assert await taking == [Started(KEY, CachedTokens(0))]


async def test_a_failure_comes_after_what_was_made_before_it() -> None:
    outbox = Outbox()
    outbox.put(Generated(KEY, 0, (1,), None))
    outbox.put(Failed(KEY, WorkerLostError("gone")))
    assert await outbox.take() == [SampleTokens(0, pack([1]), None)]
    with pytest.raises(WorkerLostError):
        await outbox.take()


async def test_an_ended_request_does_not_fail_afterwards() -> None:
    outbox = Outbox()
    outbox.put(FINISHED)
    outbox.fail(WorkerLostError("gone"))
    assert await outbox.take() == [FINISHED]
