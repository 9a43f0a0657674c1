"""Engines that are each other's peers, without a network: a test delays, cuts, spoils and drops what one sends another.

What goes over is sealed and opened as it is between workers.

    holder, asker = linked_benches()
    ask(asker, holder)
    asker.peers.end(asker.peers.pending[0])
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Any

from cache_store.domain import Domain, Epoch
from cache_store.errors import CorruptDataError
from cache_store.index import Incarnation
from cache_store.peer_seal import Exchange as Keys
from cache_store.peer_seal import answer_seal, block_names, open_question, seal_question
from tests.support.engines import ACME, Bench
from tests.support.manual_transfers import ManualMaker, always
from worker.peer_stream import BlockAssembler, sealed_chunks
from worker.peers import Fetched, FetchId, FetchOrder, PeerHint
from worker.requests import RequestKey

PROMPT = range(100, 141)
"""10 full blocks of 4, and a token."""


class Answering(StrEnum):
    """How a fetch ends."""

    WELL = "well"
    CUT = "cut"
    """After half of the blocks."""
    SPOILT = "spoilt"
    """A bit of the last block flips on its way."""
    FAILED = "failed"
    """Nothing comes."""


class ManualPeers:
    """`worker.peers.Peers` of one bench."""

    def __init__(self, name: str) -> None:
        self.incarnation = Incarnation(name)
        self.others: dict[Incarnation, Any] = {}
        """What has an engine and its runner."""
        self.pending: dict[FetchId, FetchOrder] = {}
        self.cancelled: list[FetchId] = []
        self.bench: Any = None

    def order(self, order: FetchOrder) -> None:
        self.pending[order.id] = order

    def cancel(self, fetch: FetchId) -> None:
        del self.pending[fetch]
        self.cancelled.append(fetch)

    def end(self, fetch: FetchId, how: Answering = Answering.WELL, seconds: float = 0.001) -> Fetched:
        """Ends one; what the engine is told."""
        fetched = self.answer(self.pending.pop(fetch), how, seconds)
        self.tell(fetched)
        return fetched

    def end_all(self, how: Answering = Answering.WELL) -> None:
        for fetch in tuple(self.pending):
            self.end(fetch, how)

    def tell(self, fetched: Fetched) -> None:
        assert self.bench is not None
        self.bench.engine.exchange.arrived(fetched)

    def answer(self, order: FetchOrder, how: Answering, seconds: float) -> Fetched:
        """What the other engine has of it now."""
        other = self.others.get(order.peer.incarnation)
        if how is Answering.FAILED or other is None:
            return Fetched(order.id, (), 0.0, 0.0, is_failed=True)
        keys = Keys(order.peer.incarnation, self.incarnation, secrets.token_bytes(32), bytes(32))
        exchange = other.engine.exchange
        domain = exchange.domain(order.domain.tag)
        if domain is None:
            return Fetched(order.id, (), seconds, 0.0, is_failed=False)
        tokens = open_question(domain, keys, seal_question(order.domain, keys, order.tokens))
        exported = exchange.export(domain, tokens, order.first_block, order.num_blocks)
        blocks = exported.blocks[: len(exported.blocks) // 2] if how is Answering.CUT else exported.blocks
        size, salt = other.runner.info.geometry.block_size, secrets.token_bytes(32)
        names = block_names(domain, tokens, order.first_block, size)[: len(blocks)]
        data = bytearray().join(sealed_chunks(answer_seal(domain, keys, salt, tokens), names, blocks))
        if how is Answering.SPOILT and data:
            data[-20] ^= 1
        own = block_names(order.domain, order.tokens, order.first_block, size)
        assembler = BlockAssembler(answer_seal(order.domain, keys, salt, order.tokens), own, order.block_bytes)
        num_refused = 0
        try:
            assembler.feed(bytes(data))
        except CorruptDataError:
            num_refused = 1
        return Fetched(order.id, tuple(assembler.blocks), seconds, seconds, bool(num_refused), num_refused)


class PeeredBench(Bench):
    """A bench with peers."""

    def __init__(self, name: str, **options: Any) -> None:
        self.peers = ManualPeers(name)
        make_mover: Callable[..., Any] = options.pop("make_mover", None) or ManualMaker(decide=always)
        super().__init__(peers=self.peers, make_mover=make_mover, **options)
        self.peers.bench = self

    def hint(self, num_blocks: int) -> PeerHint:
        """A router's word that this one has so many blocks of a prompt."""
        return hint_of(self.peers, num_blocks)


def hint_of(peers: ManualPeers, num_blocks: int) -> PeerHint:
    """A router's word that the engine of these peers has so many blocks of a prompt."""
    return PeerHint("nowhere:1", peers.incarnation, num_blocks, (0, Epoch(""), 0), 0)


def link(*benches: PeeredBench) -> None:
    """Each can fetch from the others."""
    for bench in benches:
        bench.peers.others = {other.peers.incarnation: other for other in benches if other is not bench}


def linked_benches(**options: object) -> tuple[PeeredBench, PeeredBench]:
    """Linked: one that has the prompt of ACME, and one that has nothing."""
    holder, asker = PeeredBench("holder", **options), PeeredBench("asker", **options)
    link(holder, asker)
    holder.answer(PROMPT)
    return holder, asker


def ask(
    asker: PeeredBench, holder: PeeredBench, prompt: Iterable[int] = PROMPT, domain: Domain = ACME, **options: object
) -> RequestKey:
    """Submits a request with a hint and runs as far as it goes without the holder's answer."""
    key = asker.submit(prompt, domain=domain, peer=holder.hint(10), **options)  # type: ignore[arg-type]
    asker.run_until_idle()
    return key
