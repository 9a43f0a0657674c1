"""In which order one tenant's waiting sequences are tried."""

from __future__ import annotations

from cache_store.domain import Domain
from tests.support.engines import ACME, GLOBEX, Bench, sampling
from worker.digest_runner import Durations
from worker.engine_config import EngineConfig
from worker.requests import RequestKey
from worker.tenant_queue import MAX_OVERTAKEN_S

ONE_PLACE = EngineConfig(num_step_tokens=64, num_max_sequences=1)


def order(bench: Bench, keys: list[RequestKey]) -> list[RequestKey]:
    """In which the requests were started."""

    def queue_s(key: RequestKey) -> float:
        finished = bench.answers[key].finished
        assert finished is not None
        return finished.queue_s

    return sorted(keys, key=queue_s)


def test_who_would_reuse_most_goes_first() -> None:
    bench = Bench(config=ONE_PLACE, durations=Durations(0.01, 0.0))
    bench.answer(range(40), sampling(1))
    bench.submit([500], sampling(4))
    bench.step()
    cold, partly, warm = (
        bench.submit(prompt, sampling(1)) for prompt in (range(600, 640), [*range(20), 7], [*range(40), 7])
    )
    bench.run_until_idle()
    assert order(bench, [cold, partly, warm]) == [warm, partly, cold]


def first_of_two_tenants(acme_prompt: range, globex_prompt: range) -> Domain:
    """Whose request starts first where both wait and both have `range(40)` in the cache."""
    bench = Bench(config=ONE_PLACE, durations=Durations(0.01, 0.001))
    for domain in (GLOBEX, ACME):
        bench.answer(range(40), sampling(1), domain=domain)
    bench.submit([500], sampling(4), domain=ACME)
    bench.step()
    keys = [
        bench.submit(acme_prompt, sampling(1), domain=ACME),
        bench.submit(globex_prompt, sampling(1), domain=GLOBEX),
    ]
    bench.run_until_idle()
    return bench.requests[order(bench, keys)[0]].domain


def test_between_tenants_reuse_decides_nothing() -> None:
    warm, cold = range(41), range(600, 641)
    assert first_of_two_tenants(warm, cold) == first_of_two_tenants(cold, warm)


def test_nobody_is_overtaken_for_longer_than_the_bound() -> None:
    bench = Bench(config=ONE_PLACE, durations=Durations(0.1, 0.0))
    bench.answer(range(40), sampling(1))
    cold = bench.submit(range(600, 640), sampling(1))
    for number in range(200):
        bench.submit([*range(40), 100 + number], sampling(2))
        bench.step()
        bench.step()
        if bench.answers[cold].finished is not None:
            break
    finished = bench.answers[cold].finished
    assert finished is not None
    assert MAX_OVERTAKEN_S <= finished.queue_s <= MAX_OVERTAKEN_S + 1.0
    bench.run_until_idle()


def test_preempted_ones_come_before_those_that_have_not_begun() -> None:
    config = EngineConfig(num_step_tokens=64, num_max_sequences=16, watermark=0.0)
    bench = Bench(num_blocks=8, config=config, durations=Durations(1.0, 0.0))
    bench.submit([1] * 8, sampling(20))
    victim = bench.submit([2] * 8, sampling(16))
    while bench.engine.load().pressure.preemptions == 0:
        bench.step()
    late = bench.submit([3] * 8, sampling(1))
    while bench.answers[late].cached_tokens is None:
        bench.step()
    bench.run_until_idle()
    bench.assert_exact(*bench.requests)
    finished = bench.answers[victim].finished
    assert finished is not None
    assert finished.preempted_s > 0
