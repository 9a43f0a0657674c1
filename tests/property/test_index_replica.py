"""The replica beside a naive index: once all changes have come it knows what there is, whenever it was loaded."""

from __future__ import annotations

import hashlib
from collections import defaultdict

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from cache_store.domain import DomainTag
from cache_store.events import BlockChange
from cache_store.index import Incarnation
from cache_store.index_replica import IndexReplica, ReplicaLoad
from cache_store.index_stream import StreamedChange

TAGS = [DomainTag(bytes([number]) * 16) for number in range(3)]
WORKERS = [Incarnation(f"{number:032x}") for number in range(2)]
BLOCKS = [hashlib.blake2b(bytes([number]), digest_size=16).digest() for number in range(8)]
MAX_DIGESTS, MAX_DOMAINS = 18, 2

Key = tuple[DomainTag, Incarnation]


class ReplicaMachine(RuleBasedStateMachine):
    """A worker's chain per domain grows and shrinks at its end; its changes reach the replica later, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.replica = IndexReplica(MAX_DIGESTS, MAX_DOMAINS)
        self.lengths: dict[Key, int] = defaultdict(int)
        """What the store says now."""
        self.on_the_way: dict[Incarnation, list[StreamedChange]] = defaultdict(list)
        self.loads: list[tuple[ReplicaLoad, list[bytes] | None]] = []
        """Under way, with what was read."""

    tags = st.sampled_from(TAGS)
    workers = st.sampled_from(WORKERS)

    @rule(tag=tags, worker=workers, to=st.integers(0, len(BLOCKS)))
    def change(self, tag: DomainTag, worker: Incarnation, to: int) -> None:
        length = self.lengths[tag, worker]
        if to > length:
            event = StreamedChange(tag, BlockChange.STORED, b"".join(BLOCKS[length:to]))
        else:
            event = StreamedChange(tag, BlockChange.REMOVED, b"".join(reversed(BLOCKS[to:length])))
        self.lengths[tag, worker] = to
        self.on_the_way[worker].append(event)

    @rule(tag=tags, worker=workers)
    def clear(self, tag: DomainTag, worker: Incarnation) -> None:
        self.lengths[tag, worker] = 0
        self.on_the_way[worker].append(StreamedChange(tag, BlockChange.CLEARED, b""))

    @rule(worker=workers, num_changes=st.integers(1, 4))
    def arrive(self, worker: Incarnation, num_changes: int) -> None:
        come, self.on_the_way[worker] = (
            self.on_the_way[worker][:num_changes],
            self.on_the_way[worker][num_changes:],
        )
        self.replica.apply(worker, come)

    @rule(tag=tags, worker=workers)
    def begin_load(self, tag: DomainTag, worker: Incarnation) -> None:
        begun = self.replica.begin_load(tag, worker)
        if begun is not None:
            self.loads.append((begun, None))

    @rule(which=st.integers(0, 3))
    def read(self, which: int) -> None:
        """The store answers a load now; the answer may be long on its way."""
        if which < len(self.loads):
            begun, _ = self.loads[which]
            self.loads[which] = (begun, BLOCKS[: self.lengths[begun.domain_tag, begun.incarnation]])

    @rule(which=st.integers(0, 3))
    def end_load(self, which: int) -> None:
        if which < len(self.loads):
            begun, answer = self.loads.pop(which)
            if answer is not None:
                self.replica.finish_load(begun, answer)
            self.replica.abandon_load(begun)

    @rule(worker=workers)
    def forget(self, worker: Incarnation) -> None:
        self.replica.forget(worker)
        assert not any(self.replica.knows(tag, worker) for tag in TAGS)

    @rule(tag=tags, worker=workers)
    def count(self, tag: DomainTag, worker: Incarnation) -> None:
        """Once everything has arrived the answer is the store's."""
        self.replica.apply(worker, self.on_the_way.pop(worker, []))
        if self.replica.knows(tag, worker):
            for asked in range(1, len(BLOCKS) + 1):
                found = self.replica.counts(tag, b"".join(BLOCKS[:asked]), [worker])
                assert found == {worker: min(asked, self.lengths[tag, worker])}

    @invariant()
    def books_agree(self) -> None:
        self.replica.check_invariants()


TestReplica = ReplicaMachine.TestCase
