"""Adapters in the engine, over a runner whose tokens and records tell which adapter made them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cache_store.domain import NO_ADAPTER, AdapterDigest, Domain
from cache_store.errors import UnavailableError
from cache_store.tokens import pack
from tests.support.domains import make_domain
from tests.support.engines import Bench, sampling
from worker.engine_config import EngineConfig
from worker.pins import PinId, PinRequest
from worker.runner import PreparedAdapter

A, B = AdapterDigest(b"a" * 32), AdapterDigest(b"b" * 32)
PROMPT = list(range(17))


def domain(bench: Bench, adapter: AdapterDigest, tenant: str = "acme") -> Domain:
    return make_domain(tenant, kv_format=bench.runner.info.format_with(adapter))


def bench_with(*adapters: AdapterDigest, **changes: object) -> Bench:
    bench = Bench(**changes)  # type: ignore[arg-type]
    for adapter in adapters:
        bench.engine.attach_adapter(PreparedAdapter(adapter, None))
    return bench


def test_the_same_prompt_under_one_adapter_after_another_is_computed_and_under_itself_reused() -> None:
    bench = bench_with(A, B)
    for expected in (0, 16):
        for adapter in (NO_ADAPTER, A, B):
            key = bench.submit(PROMPT, domain=domain(bench, adapter), adapter=adapter)
            bench.run_until_idle()
            bench.assert_exact(key)
            assert bench.answers[key].cached_tokens == expected
    answers = {bench.answers[key].samples for key in bench.answers}
    assert len(answers) == 3, "an adapter changes nothing"


@given(
    st.lists(st.tuples(st.sampled_from([NO_ADAPTER, A, B]), st.integers(1, 24)), min_size=1, max_size=8),
    st.integers(10, 24),
    st.sampled_from([None, 6]),
)
@settings(max_examples=60)
def test_any_mix_in_a_small_pool_is_exact(
    work: list[tuple[AdapterDigest, int]], num_blocks: int, window: int | None
) -> None:
    bench = bench_with(
        A, B, num_blocks=num_blocks, window=window, config=EngineConfig(num_step_tokens=8, num_max_sequences=4)
    )
    keys = [
        bench.submit(range(length), sampling(max_tokens=6), domain=domain(bench, adapter), adapter=adapter)
        for adapter, length in work
    ]
    bench.run_until_idle()
    bench.assert_exact(*keys)


def test_a_retired_adapter_is_dropped_while_what_it_began_goes_on() -> None:
    bench = bench_with(A, B)
    of_a, of_b = domain(bench, A), domain(bench, B)
    bench.answer(PROMPT, domain=of_a, adapter=A)
    bench.answer(PROMPT, domain=of_b, adapter=B)
    running = bench.submit(PROMPT, domain=of_a, adapter=A)
    bench.step()
    waiting = bench.submit(PROMPT, domain=of_a, adapter=A)
    dropped = bench.engine.retire_adapter(A, of_a.kv_format)
    assert dropped.device_blocks > 0
    assert bench.engine.lookup(of_a, pack(PROMPT)).total == 0
    with pytest.raises(UnavailableError, match="unloaded or replaced"):
        bench.submit(PROMPT, domain=of_a, adapter=A)
    bench.run_until_idle()
    bench.assert_exact(running, waiting)
    assert bench.engine.lookup(of_a, pack(PROMPT)).total == 0, "nothing is stored for it any more"
    assert bench.answer(PROMPT, domain=of_b, adapter=B).cached_tokens == 16
    assert bench.inner._adapters == {A, B}
    bench.engine.tick()
    assert bench.inner._adapters == {B}


def test_bytes_of_a_retired_adapter_are_overwritten() -> None:
    bench = bench_with(A)
    bench.answer(PROMPT, domain=domain(bench, A), adapter=A)
    assert bench.written_slots()
    bench.engine.retire_adapter(A, domain(bench, A).kv_format)
    bench.run_until_idle()
    assert not bench.written_slots()


def test_pins_end_with_their_adapter() -> None:
    bench = bench_with(A)
    of_a, plain = domain(bench, A), domain(bench, NO_ADAPTER)
    bench.answer(PROMPT, domain=of_a, adapter=A)
    bench.answer(PROMPT, domain=plain)
    ends_s = bench.clock.unix_s() + 60
    for pin, each in (("a", of_a), ("plain", plain)):
        bench.engine.pins.pin(PinRequest(each, PinId(pin), pack(PROMPT[:9]), ends_s, ""))
    bench.engine.retire_adapter(A, of_a.kv_format)
    assert [pin.pin_id for pin in bench.engine.pins.of(plain)] == ["plain"]
    bench.engine.check_invariants()


def test_an_adapter_that_comes_back_begins_with_nothing_cached() -> None:
    bench = bench_with(A)
    of_a = domain(bench, A)
    bench.answer(PROMPT, domain=of_a, adapter=A)
    bench.engine.retire_adapter(A, of_a.kv_format)
    bench.engine.attach_adapter(PreparedAdapter(A, None))
    assert bench.answer(PROMPT, domain=of_a, adapter=A).cached_tokens == 0
    assert bench.answer(PROMPT, domain=of_a, adapter=A).cached_tokens == 16


def test_retiring_takes_every_tenants_blocks_of_it_and_no_others() -> None:
    bench = bench_with(A)
    for tenant in ("acme", "globex"):
        bench.answer(PROMPT, domain=domain(bench, A, tenant), adapter=A)
        bench.answer(PROMPT, domain=domain(bench, NO_ADAPTER, tenant))
    bench.engine.retire_adapter(A, domain(bench, A).kv_format)
    for tenant in ("acme", "globex"):
        assert bench.engine.lookup(domain(bench, A, tenant), pack(PROMPT)).total == 0
        assert bench.engine.lookup(domain(bench, NO_ADAPTER, tenant), pack(PROMPT)).total == 16
