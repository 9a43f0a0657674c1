"""The engine's answers and its use of the cache, one request or a few at a time."""

from __future__ import annotations

from tests.support.engines import ACME, GLOBEX, Bench, sampling


def test_answers_equal_the_oracle() -> None:
    bench = Bench()
    keys = [bench.submit(range(n), sampling(12), num_samples=1 + n % 3) for n in range(1, 30)]
    bench.run_until_idle()
    bench.assert_exact(*keys)


def test_same_tenant_hits_and_other_tenant_does_not() -> None:
    bench = Bench()
    prompt = range(16)
    assert bench.answer(prompt, domain=ACME).cached_tokens == 0
    assert bench.answer(prompt, domain=GLOBEX).cached_tokens == 0
    assert bench.answer(prompt, domain=ACME).cached_tokens == 15
    assert bench.answer(prompt, domain=GLOBEX).cached_tokens == 15
    bench.assert_exact(*bench.requests)
