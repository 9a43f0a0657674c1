"""Usage against a naive model: writers that die, writes that are cut off and repeated, a store that goes back in time.

Whatever is still to be written somewhere or was stored counts once, for its tenant, in its hour.
"""

from __future__ import annotations

import copy
from collections import Counter

import hypothesis.strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule

from cache_store.domain import TenantId
from cache_store.memory_meter import MemoryMeterStore
from cache_store.meter_batches import MeterBatch, MeterBatches
from cache_store.meter_store import MeterWriterId
from cache_store.metered import Metered, counts_text, parse_counts

TENANTS = [TenantId(name) for name in ("acme", "globex", "initech")]
KINDS = [Metered.PROMPT, Metered.GENERATED, Metered.COMPLETED]
KEPT = 4

Key = tuple[int, TenantId, Metered]


def run(coroutine: object) -> object:
    """The store in memory never waits."""
    try:
        coroutine.send(None)  # type: ignore[attr-defined] # a coroutine
    except StopIteration as end:
        return end.value
    raise AssertionError("it waited")


class Writer:
    def __init__(self, number: int) -> None:
        self.id = MeterWriterId(f"writer-{number}")
        self.batches = MeterBatches(num_kept=KEPT)
        self.counted: Counter[Key] = Counter()
        """Everything that it was told."""


class Metering(RuleBasedStateMachine):
    writers = Bundle("writers")

    def __init__(self) -> None:
        super().__init__()
        self.store = MemoryMeterStore()
        self.copies: list[MemoryMeterStore] = []
        self.living: list[Writer] = []
        self.dead: list[Writer] = []
        self.applied: dict[tuple[MeterWriterId, int], MeterBatch] = {}
        """Every batch that ever reached the store."""
        self.num_since_copy = 0
        """Batches that reached it since the last copy was made."""

    @rule(target=writers)
    def start(self) -> Writer:
        writer = Writer(len(self.living) + len(self.dead))
        self.living.append(writer)
        return writer

    @rule(
        writer=writers,
        hour=st.integers(100, 102),
        tenant=st.sampled_from(TENANTS),
        kind=st.sampled_from(KINDS),
        number=st.integers(0, 5),
    )
    def count(self, writer: Writer, hour: int, tenant: TenantId, kind: Metered, number: int) -> None:
        writer.batches.add(hour, tenant, {kind: number})
        writer.counted[hour, tenant, kind] += number

    @rule(writer=writers, reaches=st.booleans(), answers=st.booleans())
    def write(self, writer: Writer, reaches: bool, answers: bool) -> None:
        batch = writer.batches.next()
        if batch is None or not reaches:
            return
        last = run(self.store.add(writer.id, batch))
        assert isinstance(last, int)
        if last == batch.number:
            known = self.applied.setdefault((writer.id, batch.number), batch)
            assert known.lines == batch.lines, "a batch never changes"
        if answers:
            writer.batches.note_stored(last)

    @rule(writer=consumes(writers))
    def kill(self, writer: Writer) -> None:
        self.living.remove(writer)
        self.dead.append(writer)

    @precondition(lambda self: not self.dead)
    @rule()
    def take_copy(self) -> None:
        self.copies = [copy.deepcopy(self.store)]
        self.num_since_copy = len(self.applied)

    @precondition(lambda self: self.copies and not self.dead and len(self.applied) - self.num_since_copy <= KEPT)
    @rule()
    def go_back(self) -> None:
        """As a server does that had not synced its last second."""
        self.store = copy.deepcopy(self.copies[0])

    @rule()
    def settle(self) -> None:
        for writer in self.living:
            batch = writer.batches.last() or writer.batches.next()
            while batch is not None:
                last = run(self.store.add(writer.id, batch))
                assert isinstance(last, int)
                self.applied.setdefault((writer.id, batch.number), batch)
                writer.batches.note_stored(last)
                batch = writer.batches.next()
            assert writer.batches.num_lost == 0
        if not self.copies or not self.dead:
            assert self.stored() == +self.expected()

    def stored(self) -> Counter[Key]:
        lines = run(self.store.read(0, 1_000, None))
        assert isinstance(lines, list)
        return Counter(
            {(line.hour, line.tenant, kind): number for line in lines for kind, number in line.counts.items()}
        )

    def expected(self) -> Counter[Key]:
        """All that living writers were told, and what dead ones had brought to the store."""
        expected: Counter[Key] = Counter()
        for writer in self.living:
            expected.update(writer.counted)
        dead = {writer.id for writer in self.dead}
        for (writer_id, _), batch in self.applied.items():
            if writer_id in dead:
                for line in batch.lines:
                    expected.update({(line.hour, line.tenant, kind): n for kind, n in line.counts.items()})
        return expected

    @invariant()
    def nothing_counts_twice(self) -> None:
        told: Counter[Key] = Counter()
        for writer in (*self.living, *self.dead):
            writer.batches.check_invariants()
            told.update(writer.counted)
        assert self.stored() <= told

    @invariant()
    def tenants_add_up(self) -> None:
        lines = run(self.store.read(0, 1_000, None))
        assert isinstance(lines, list)
        alone = [run(self.store.read(0, 1_000, tenant)) for tenant in TENANTS]
        assert sorted(lines, key=str) == sorted((line for each in alone for line in each), key=str)  # type: ignore[attr-defined]


TestMetering = Metering.TestCase


def test_counts_survive_their_text() -> None:
    counts = Counter({kind: at + 1 for at, kind in enumerate(Metered)})
    assert parse_counts(counts_text(counts)) == counts
    assert parse_counts("prompt:3 something_new:4 prompt:x :1 prompt:2") == Counter({Metered.PROMPT: 5})


def test_what_waits_is_bounded_and_nothing_of_it_is_lost() -> None:
    batches = MeterBatches(max_pending=10)
    for hour in range(50):
        for tenant in TENANTS:
            batches.add(hour, tenant, {Metered.PROMPT: 1})
            batches.check_invariants()
    store = MemoryMeterStore()
    while (batch := batches.next()) is not None:
        last = run(store.add(MeterWriterId("w"), batch))
        assert isinstance(last, int)
        batches.note_stored(last)
    lines = run(store.read(0, 100, None))
    assert isinstance(lines, list)
    assert sum(line.counts[Metered.PROMPT] for line in lines) == 150
