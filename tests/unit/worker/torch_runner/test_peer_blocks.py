"""Keys and values that came from another worker, against transformers' `generate` and against no cache.

Slots that hold nothing hold NaN: one that was not filled by what came shows in the logits and so in a token.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from cache_store.clock import ManualClock
from cache_store.domain import Domain
from cache_store.kv_layout import KvDtype
from cache_store.tokens import pack
from tests.support.domains import make_domain
from tests.support.manual_peers import Answering, ManualPeers, hint_of
from tests.support.manual_transfers import ManualMaker, always
from tests.support.reference import generate
from tests.support.runner_drivers import tokens
from worker.engine import Engine
from worker.engine_config import EngineConfig
from worker.peers import PeerHint
from worker.requests import CacheMode, EngineRequest, Generated, RequestKey, Started
from worker.sampling import SamplingParams
from worker.torch_runner.fastest import fastest_attention
from worker.torch_runner.loader import LoadedModel, with_kv_dtype
from worker.torch_runner.paged import PagedRunner

BLOCK = 8
NUM_NEW = 12
PROMPT = tokens(101, 3)
NUM_FULL = 12
"""Blocks of the prompt."""
ACME, GLOBEX = make_domain("acme"), make_domain("globex")


class Node:
    """A worker without its edges."""

    def __init__(self, model: LoadedModel, name: str) -> None:
        attention = fastest_attention(model)
        maker = ManualMaker(decide=always)
        self.runner = PagedRunner(model, 64, attention, BLOCK, fill=math.nan, make_mover=maker)
        self.peers = ManualPeers(name)
        self.engine = Engine(self.runner, ManualClock(), EngineConfig(), peers=self.peers)
        self.peers.bench = self
        self._num_requests = 0

    def answer(self, domain: Domain = ACME, peer: PeerHint | None = None) -> tuple[list[int], int]:
        """Greedy tokens of the prompt, and how many tokens of it came from a peer."""
        key = RequestKey(self._num_requests)
        self._num_requests += 1
        greedy = SamplingParams(0.0, 1.0, 0, 1, NUM_NEW, 0, ())
        request = EngineRequest(key, domain, pack(PROMPT), greedy, 1, CacheMode.READ_WRITE, peer=peer)
        self.engine.submit(request)
        made: list[int] = []
        num_peer = 0
        while self.engine.has_work or self.engine.num_loading or self.peers.pending:
            for output in self.engine.step():
                if isinstance(output, Started):
                    num_peer = output.cached.peer
                elif isinstance(output, Generated):
                    made += output.token_ids
            self.peers.end_all()
        self.engine.check_invariants()
        return made, num_peer


def linked(model: LoadedModel) -> tuple[Node, Node]:
    holder, asker = Node(model, "holder"), Node(model, "asker")
    asker.peers.others = {holder.peers.incarnation: holder}
    return holder, asker


@pytest.mark.parametrize("name", ["llama", "qwen3", "deepseek_v2"])
def test_answers_are_those_of_transformers(tiny: Callable[[str], LoadedModel], name: str) -> None:
    model = tiny(name)
    expected = generate(model, PROMPT, NUM_NEW).tokens
    holder, asker = linked(model)
    assert holder.answer()[0] == expected
    assert asker.answer(peer=hint_of(holder.peers, NUM_FULL)) == (expected, NUM_FULL * BLOCK)


def test_another_tenant_computes_and_the_same_one_does_not(tiny: Callable[[str], LoadedModel]) -> None:
    model = tiny("llama")
    holder, asker = linked(model)
    expected = holder.answer()[0]
    hint = hint_of(holder.peers, NUM_FULL)
    assert asker.answer(GLOBEX, hint) == (expected, 0)
    assert asker.answer(ACME, hint) == (expected, NUM_FULL * BLOCK)


def test_quantised_blocks_have_the_same_bits(tiny: Callable[[str], LoadedModel]) -> None:
    model = with_kv_dtype(tiny("llama"), KvDtype.INT8)
    holder, asker = linked(model)
    cold = Node(model, "cold").answer()[0]
    assert holder.answer()[0] == cold
    assert asker.answer(peer=hint_of(holder.peers, NUM_FULL)) == (cold, NUM_FULL * BLOCK)
    parts = [node.engine.exchange.export(ACME, pack(PROMPT), 0, NUM_FULL).blocks for node in (holder, asker)]
    assert parts[0] == parts[1]


def test_spoilt_blocks_are_computed(tiny: Callable[[str], LoadedModel]) -> None:
    model = tiny("llama")
    holder, asker = linked(model)
    expected = holder.answer()[0]
    asker.peers.end_all = lambda how=Answering.SPOILT: ManualPeers.end_all(asker.peers, how)  # type: ignore[method-assign]
    made, num_peer = asker.answer(peer=hint_of(holder.peers, NUM_FULL))
    assert (made, num_peer) == (expected, (NUM_FULL - 1) * BLOCK)
