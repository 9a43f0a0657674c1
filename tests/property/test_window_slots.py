"""Slots of a window group under random holds, locks, quotas and purges, against a naive model of who may lose what.

The boundaries of several groups are compared with a brute-force search over every length.
"""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cache_store.domain import TenantId
from cache_store.pool_sizes import ABSENT, WindowSize, reach, span
from cache_store.prefix_tree import Block, DomainRoot
from cache_store.quota import QuotaTable
from cache_store.window_order import Worth
from cache_store.window_slots import WindowSlots
from cache_store.windows import Windows
from tests.support.domains import make_domain
from tests.support.quotas import quota_tables

pytestmark = pytest.mark.timeout(1_800)  # the nightly profile takes minutes

TENANTS = ("acme", "globex", "umbrella")
DOMAINS = tuple(make_domain(name) for name in TENANTS)
ROOTS = tuple(DomainRoot(domain) for domain in DOMAINS)
tenants = st.sampled_from(range(len(TENANTS)))


class WindowSlotsMachine(RuleBasedStateMachine):
    """Blocks of three tenants; in the tree or not, held, locked."""

    @initialize(num_held=st.integers(1, 6), num_cached=st.integers(0, 12), quotas=quota_tables(TENANTS))
    def start(self, num_held: int, num_cached: int, quotas: QuotaTable) -> None:
        self.size = WindowSize(0, 4, 2, num_held + num_cached, num_held)
        self.dropped: set[bytes] = set()
        self.slots = WindowSlots(self.size, self.dropped)
        self.blocks: list[Block] = []
        self.held: Counter[Block] = Counter()
        self.locked: Counter[Block] = Counter()
        self.written: dict[int, bytes] = {}
        self.next = 0
        self.set_quotas(quotas)

    @rule(quotas=quota_tables(TENANTS))
    def set_quotas(self, quotas: QuotaTable) -> None:
        self.quotas = quotas
        self.slots.set_quotas(quotas)

    def _guaranteed(self, tenant: str) -> int:
        share = self.quotas.of(TenantId(tenant)).share(self.slots._ledger._tier)
        return share.guaranteed_blocks(self.size.num_cached)

    def _cached(self, tenant: str) -> list[Block]:
        return [
            block
            for block in self.blocks
            if block.tenant == tenant and block.slots[0] != ABSENT and not (self.held[block] or self.locked[block])
        ]

    def _num_running(self) -> int:
        return sum(num > 0 for num in self.held.values())

    def _scrub(self) -> None:
        for slot in self.slots.take_scrubs():
            self.written.pop(slot, None)

    def _write(self, block: Block) -> None:
        self._scrub()
        assert self.written.get(block.slots[0], block.root) == block.root, "another domain's bytes are left in a slot"
        self.written[block.slots[0]] = block.root

    @precondition(lambda self: self._num_running() < self.size.num_held)
    @rule(who=tenants)
    def take(self, who: int) -> None:
        block = Block(self.next, (ABSENT,))
        self.next += 1
        block.root, block.tenant, block.ref_count = DOMAINS[who].root, DOMAINS[who].tenant, 1
        self.slots.take(block)
        self._write(block)
        self.blocks.append(block)
        self.held[block] = 1

    @precondition(lambda self: any(self.held.values()))
    @rule(data=st.data(), is_stored=st.booleans(), worth=st.sampled_from(Worth))
    def let_go(self, data: st.DataObject, is_stored: bool, worth: Worth) -> None:
        block = data.draw(st.sampled_from([each for each in self.blocks if self.held[each]]))
        if is_stored and block.parent is None and block.root not in self.dropped:
            block.parent = next(root for root in ROOTS if root.digest == block.root)
        others = {name: self._cached(name) for name in TENANTS if name != block.tenant}
        self.slots.let_go((block,), worth)
        self.held[block] -= 1
        block.ref_count = int(self.held[block] + self.locked[block] > 0)
        for name, before in others.items():
            num_lost = sum(each.slots[0] == ABSENT for each in before)
            num_locked = sum(1 for each in self.blocks if each.tenant == name and self.locked[each])
            assert num_lost == 0 or len(before) - num_lost + num_locked >= self._guaranteed(name), (
                "a guarantee was taken"
            )

    @rule(data=st.data(), hits=st.booleans())
    def hold(self, data: st.DataObject, hits: bool) -> None:
        known = [block for block in self.blocks if block.slots[0] != ABSENT and block.parent is not None]
        is_room = self._num_running() < self.size.num_held
        known = known if is_room else [block for block in known if self.held[block]]
        if known:
            block = data.draw(st.sampled_from(known))
            self.slots.hold((block,))
            self.held[block] += 1
            block.ref_count = 1
            if hits:
                self.slots.note_hit((block,))

    @rule(data=st.data())
    def lock(self, data: st.DataObject) -> None:
        known = [block for block in self.blocks if block.slots[0] != ABSENT and block.parent is not None]
        if not known:
            return
        first = data.draw(st.sampled_from(known))
        blocks = [block for block in known if block.root == first.root][:3]
        before = {name: self._cached(name) for name in TENANTS}
        if self.slots.lock(blocks):
            self.locked.update(blocks)
            for block in blocks:
                block.ref_count = 1
        else:
            assert {name: self._cached(name) for name in TENANTS} == before, "a refused lock has changed something"

    @rule(who=tenants)
    def reserve(self, who: int) -> None:
        domain = DOMAINS[who]
        if self.slots.can_reserve(domain.tenant, 1):
            block = Block(self.next, (ABSENT,))
            self.next += 1
            block.root, block.tenant, block.ref_count = domain.root, domain.tenant, 1
            self.slots.reserve((block,))
            self._write(block)
            self.blocks.append(block)
            self.locked[block] = 1

    @precondition(lambda self: any(self.locked.values()))
    @rule(data=st.data())
    def unlock(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from([each for each in self.blocks if self.locked[each]]))
        self.slots.unlock((block,))
        self.locked[block] -= 1
        block.ref_count = int(self.held[block] + self.locked[block] > 0)

    @precondition(lambda self: any(self.held.values()))
    @rule(data=st.data())
    def move(self, data: st.DataObject) -> None:
        """A block with equal contents is found to stand in the tree."""
        block = data.draw(st.sampled_from([each for each in self.blocks if self.held[each] or self.locked[each]]))
        twins = [each for each in self.blocks if each.root == block.root and each is not block and each.parent]
        if block.parent is not None or not twins:
            return
        there = data.draw(st.sampled_from(twins))
        there.ref_count = 1
        self.slots.move(block, there)
        self.held[there] += self.held.pop(block, 0)
        self.locked[there] += self.locked.pop(block, 0)
        block.ref_count = 0

    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        known = [block for block in self.blocks if block.parent is not None]
        if known:
            block = data.draw(st.sampled_from(known))
            block.parent = None
            self.slots.forget((block,))

    @rule(who=tenants)
    def drop(self, who: int) -> None:
        """A purge; nothing of the domain is ever written again."""
        domain = DOMAINS[who]
        for block in self.blocks:
            if block.root == domain.root and block.parent is not None:
                block.parent = None
                self.slots.forget((block,))
        self.dropped.add(domain.root)
        self.slots.drop({domain.tenant})
        for slot in self.slots.take_dropped(1_000):
            self.written.pop(slot, None)
        kept = {b.slots[0] for b in self.blocks if b.root == domain.root and b.slots[0] != ABSENT}
        left = {slot for slot, root in self.written.items() if root == domain.root}
        assert left <= kept, "bytes of what was purged are left"
        self.dropped.discard(domain.root) if not kept else None

    @invariant()
    def books(self) -> None:
        if not hasattr(self, "slots"):
            return
        self.slots.check_invariants({block for block in self.blocks if block.parent is not None})
        self.slots.check_holds(Counter({block: num for block, num in self.held.items() if num}))
        assert all(block.slots[0] != ABSENT for block, num in (self.held + self.locked).items() if num)
        assert self.slots.num_cached <= self.size.num_cached
        self.blocks = [block for block in self.blocks if block.slots[0] != ABSENT or block.parent is not None]


TestWindowSlots = WindowSlotsMachine.TestCase


@given(
    windows=st.lists(st.integers(1, 20), min_size=1, max_size=3),
    block_size=st.integers(1, 5),
    present=st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans()), max_size=12),
    run=st.integers(0, 4),
    run_fits=st.booleans(),
)
def test_the_longest_common_boundary_is_that_of_a_search_over_every_length(
    windows: list[int],
    block_size: int,
    present: list[tuple[bool, bool, bool]],
    run: int,
    run_fits: bool,
) -> None:
    sizes = [WindowSize(group, reach(each), span(each, block_size), 99, 9) for group, each in enumerate(windows)]
    groups = Windows(sizes, block_size, ())
    rows = [*present, (run_fits,) * 3]
    blocks = [
        Block(at, tuple(at if row[group] else ABSENT for group in range(len(windows)))) for at, row in enumerate(rows)
    ]
    chain, source = blocks[:-1], blocks[-1]
    run = min(run, block_size - 1)

    def is_usable(length: int) -> bool:
        read = [(group, at // block_size) for group, each in enumerate(windows) for at in _read(length, each)]
        return all(blocks[at].slots[group] != ABSENT for group, at in read)

    best = max(length for length in range(len(chain) * block_size + run + 1) if is_usable(length))
    if run and groups.fits(source) and groups.has_run(chain, run):
        found = len(chain) * block_size + run
    else:
        found = groups.usable(chain) * block_size
    assert found == best


def _read(length: int, window: int) -> range:
    """Positions that the query at `length` reads beside itself."""
    return range(max(0, length - max(window, 2) + 1), length)
