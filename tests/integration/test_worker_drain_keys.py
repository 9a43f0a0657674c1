"""While the master key is exchanged workers hand over what they have, also where one of two is a step further."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest

from services.cli.master_key import Step, after
from services.tenants.master_key import MasterKey, cluster_key
from tests.support.memory_stores import MemoryStores
from tests.support.router_host import MASTER
from tests.support.worker_host import WorkerClient, digest_config, digest_domain, running_workers
from worker.rpc_retire import Taker

ACME = digest_domain("acme")
PROMPT = list(range(100, 140))
"""Two full blocks of 16 each."""


def neighbours() -> Iterator[tuple[str, MasterKey, MasterKey]]:
    """What two workers have while one has started anew after a step and the other one has not."""
    before = MASTER
    for step in Step:
        later = after(before, step)
        yield f"{step}, one of before leaves", before, later
        yield f"{step}, one of after leaves", later, before
        before = later


CASES = {name: (leaving, taking) for name, leaving, taking in neighbours()}


@pytest.mark.parametrize(("leaving", "taking"), CASES.values(), ids=CASES.keys())
async def test_what_is_cached_is_handed_over_between_two_steps(leaving: MasterKey, taking: MasterKey) -> None:
    configs = [digest_config(), digest_config("worker-1")]
    keyed = [
        dataclasses.replace(config, cluster_key=cluster_key(master))
        for config, master in zip(configs, (leaving, taking), strict=True)
    ]
    async with running_workers(keyed, MemoryStores().connect) as (holder, taker):
        async with WorkerClient(holder.address, holder.incarnation, cluster_key(leaving)) as client:
            await client.execute(ACME, PROMPT, max_tokens=1)
        farewell = await holder._retirement.run([Taker(taker.address, taker.incarnation, 0.0)], 5.0)
        assert farewell.num_moved == 2
        held = await taker.thread.call(lambda engine: engine.snapshot(), 10.0)
        assert set(held) == {ACME.tag}
