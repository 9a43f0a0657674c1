"""The block pool of a device: ref-counted slots under a prefix tree, shared by tenants with quotas.

Pure numbers: it says which slots hold what and never touches a tensor. Owned by the engine's thread; no locks.

Three states of a block: *held* (ref_count > 0), *cached* (in the tree, nobody holds it), or gone, its slots unused. A
held block's ancestors are held, so the cached blocks below a cached block are all cached, and leaves that nobody holds
are all that eviction has to look at. Each tenant has an account with its own order of eviction.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from cache_store.account import Account
from cache_store.adoptions import Adoptions
from cache_store.clock import Clock
from cache_store.digest import Hasher, xxh3_128
from cache_store.domain import Domain, DomainTag, TenantId
from cache_store.event_log import EventLog
from cache_store.events import BlockChange, BlockEvent
from cache_store.eviction import Evictions
from cache_store.groups import CacheGeometry
from cache_store.ledger import Ledger, PolicyMaker
from cache_store.lending import num_attainable, num_available
from cache_store.lower_block import LowerBlock
from cache_store.lower_tiers import LowerTiers
from cache_store.matching import Matching
from cache_store.policies.lru import Lru
from cache_store.policy import Outcome, Use
from cache_store.pool_audit import PoolAudit
from cache_store.pool_check import check_pool
from cache_store.pool_sizes import ABSENT, WindowSize
from cache_store.prefix_tree import Block, PrefixTree
from cache_store.quota import QuotaTable
from cache_store.scrubs import Dropped, Scrubs, slots_of
from cache_store.shadow import DEFAULT_RULES, WatchRules
from cache_store.tier_kind import DEVICE_ONLY, TierKind, TierSizes
from cache_store.tiers import Granted, Match, Short
from cache_store.tokens import TOKEN_BYTES, PackedTokens
from cache_store.usage import CachedTokens, Pressure, TenantUse
from cache_store.uses import Uses
from cache_store.windows import Windows


class BlockPool:
    """Blocks of one worker's device; implements `cache_store.tiers.Tier`."""

    def __init__(
        self,
        geometry: CacheGeometry,
        num_blocks: int,
        clock: Clock,
        hasher: Hasher = xxh3_128,
        policy: PolicyMaker = Lru,
        watch_rules: WatchRules = DEFAULT_RULES,
        sizes: TierSizes = DEVICE_ONLY,
        windows: Sequence[WindowSize] = (),
    ) -> None:
        """`windows`: the window groups; in all others each block has a slot of its number."""
        if num_blocks < 1:
            raise ValueError("a pool needs at least one block")
        self._block_size = geometry.block_size
        self._num_blocks = num_blocks
        self._clock = clock
        self._tree = PrefixTree(geometry.block_size, hasher)
        self._ledger = Ledger(TierKind.DEVICE, num_blocks, policy, watch_rules)
        groups = {size.group for size in windows}
        self._unused = [
            Block(number, tuple(ABSENT if group in groups else number for group in range(len(geometry.groups))))
            for number in range(num_blocks - 1, -1, -1)
        ]
        self.blocks = tuple(self._unused)
        """All, by falling number; only to be looked at."""
        self.scrubs = Scrubs(geometry.bytes_per_block, num_blocks)
        """What is to be scrubbed beside what `allocate` says."""
        self.windows = Windows(windows, geometry.block_size, self.scrubs.roots)
        """Slots of the window groups."""
        self._next_uid = 0
        self._events = EventLog()
        self._uses = Uses(geometry.block_size, clock)
        self.reuse = self._ledger.reuse
        """How often tenants would hit with more or less room."""
        self.lower: LowerTiers | None = None
        """The tiers below, if there are any."""
        if sizes != DEVICE_ONLY:
            self.lower = LowerTiers(
                sizes, geometry, clock, self._ledger, self._events, bare=lambda block: self._evictions.watch(block)
            )
        self._evictions = Evictions(
            clock, self._tree, self._ledger, self._unused, self._events, self.lower, self.windows
        )
        self.adoptions = Adoptions(self._ledger, self._unused, self._evictions, self._uses)
        """Room for what another worker gives away."""
        self.matching = Matching(self._tree, self.windows, self.lower, geometry.block_size)
        """What of a prompt is here; holds nothing and counts as no use."""
        self.audit = PoolAudit(
            self._tree, self._ledger, self._unused, self.windows, self.scrubs, self._events, self._evictions, self.lower
        )

    @property
    def kind(self) -> TierKind:
        """The device."""
        return TierKind.DEVICE

    @property
    def num_blocks(self) -> int:
        """Capacity."""
        return self._num_blocks

    @property
    def num_held(self) -> int:
        """Blocks that somebody holds."""
        return sum(account.num_held for account in self._ledger.present)

    @property
    def num_used(self) -> int:
        """Held and cached blocks."""
        return self._num_blocks - len(self._unused)

    @property
    def quotas(self) -> QuotaTable:
        """In force now."""
        return self._ledger.quotas

    @property
    def pressure(self) -> Pressure:
        """What running out of blocks has led to, as far as the pool knows."""
        return replace(self._evictions.pressure, demoted_blocks=0 if self.lower is None else self.lower.num_demoted)

    def set_quotas(self, quotas: QuotaTable) -> None:
        """Other quotas from now on. What is cached beyond them goes at once, what is held when it is let go."""
        self._ledger.set_quotas(quotas)
        self.windows.set_quotas(quotas)
        for account in list(self._ledger.present):
            self._evictions.trim(account)
        self._evictions.give_back()
        if self.lower is not None:
            self.lower.set_quotas(quotas)

    def usage(self) -> tuple[TenantUse, ...]:
        """Who has what; those with most blocks first."""
        by_use = sorted(self._ledger.everybody, key=lambda account: (-account.num_used, account.tenant))
        num_borrowed = self._ledger.borrowed()
        return tuple(self._use(account, num_borrowed) for account in by_use)

    def guarantees(self) -> dict[TenantId, int]:
        """Blocks that tenants are guaranteed, where they are guaranteed any."""
        return self._ledger.guarantees()

    def use_of(self, domain: Domain) -> TenantUse:
        """What the domain's tenant has."""
        return self._use(self._ledger.of(domain.tenant), self._ledger.borrowed())

    def max_blocks(self, domain: Domain) -> int:
        """See `Tier.max_blocks`."""
        return self._ledger.limit(self._ledger.of(domain.tenant))

    def attainable_blocks(self, domain: Domain) -> int:
        """Blocks that the domain's tenant could have if nobody held any beyond its guarantee.

        Less than `max_blocks` where others keep what they are guaranteed: what needs more waits for them to change.
        """
        return num_attainable(self._ledger.of(domain.tenant), self._ledger.present, self._num_blocks)

    def num_available(self, domain: Domain) -> int:
        """See `Tier.num_available`."""
        return num_available(self._ledger.of(domain.tenant), self._ledger.present, len(self._unused))

    def match_length(self, domain: Domain, tokens: PackedTokens, max_tokens: int) -> int:
        """See `Tier.match_length`."""
        self.expire()
        return self.matching.length(domain, tokens, max_tokens)

    def cached_tokens(self, domain: Domain, tokens: PackedTokens, max_tokens: int) -> CachedTokens:
        """Leading tokens that some tier holds; changes nothing, not even recency."""
        self.expire()
        return self.matching.cached_tokens(domain, tokens, max_tokens)

    def match_and_pin(self, domain: Domain, tokens: PackedTokens, max_tokens: int) -> Match:
        """See `Tier.match_and_pin`."""
        self.expire()
        match = self.matching.match(domain, tokens, max_tokens)
        self._hold(self._ledger.of(domain.tenant), match.pinned)
        return match

    def pin_loadable(
        self, domain: Domain, tokens: PackedTokens, max_tokens: int
    ) -> tuple[tuple[Block, ...], tuple[LowerBlock, ...]]:
        """What lower tiers have to add to the device's blocks of the prompt, and those, pinned if there is anything."""
        chain = self.matching.chain(domain, tokens, max_tokens)
        found = self.matching.loadable(domain, chain, tokens, max_tokens)
        if found:
            self._hold(self._ledger.of(domain.tenant), chain)
        return tuple(chain), found

    def num_loadable(self, chain: Sequence[Block], found: Sequence[LowerBlock]) -> int:
        """How many of `found`, which follow the device's chain, make it reusable up to their end."""
        return self.matching.num_loadable(chain, found)

    def note_reuse(self, domain: Domain, match: Match) -> None:
        """See `Tier.note_reuse`."""
        if (watch := self._ledger.of(domain.tenant).watch) is not None:
            watch.ask(len(match.blocks), len(match.blocks))

    def allocate(self, domain: Domain, num_blocks: int) -> Granted | Short:
        """See `Tier.allocate`."""
        account = self._ledger.of(domain.tenant)
        self.expire()
        available = num_available(account, self._ledger.present, len(self._unused))
        if num_blocks > available:
            return Short(available)
        if num_blocks == 0:
            return Granted((), ())
        self._evictions.make_room(account, num_blocks)
        self._ledger.enter(account)
        unused, root, tenant = self._unused, domain.root, domain.tenant
        first = len(unused) - num_blocks
        blocks = unused[first:]
        blocks.reverse()
        del unused[first:]
        scrubs: list[tuple[int, int]] = []
        for uid, block in enumerate(blocks, self._next_uid):
            block.uid = uid
            block.ref_count = 1
            if block.root != root:
                if block.root:
                    scrubs += slots_of(block)
                block.root = root
                block.tenant = tenant
        self._next_uid += num_blocks
        account.take_slots(num_blocks)
        return Granted(tuple(blocks), tuple(scrubs))

    def commit(
        self, domain: Domain, parent: Block | None, blocks: Sequence[Block], tokens: PackedTokens
    ) -> Sequence[Block]:
        """See `Tier.commit`."""
        if not blocks:
            return blocks
        assert len(tokens) == len(blocks) * self._block_size * TOKEN_BYTES, "only full blocks are shared"
        assert parent is None or (parent.parent is not None and parent.ref_count > 0), "the parent is resident and held"
        for block in blocks:
            assert block.parent is None, "a block is committed once"
            assert block.ref_count == 1, "a block that is shared before its commit would change under its other holders"
        standing = self._tree.insert(domain, parent, blocks, tokens)
        stored = blocks
        if standing is not blocks:
            pairs = list(zip(blocks, standing, strict=True))
            stored = [block for block, there in pairs if block is there]
            self._hold(self._ledger.of(domain.tenant), [there for block, there in pairs if block is not there])
            if self.windows:
                for block, there in pairs:
                    if block is not there:
                        self.windows.move(block, there)
            self.release([block for block, there in pairs if block is not there])
        if stored:
            fresh = stored if self.lower is None else self.lower.adopt(domain, stored)
            if fresh:
                self._events.add(self._tree.root_of(stored[0]).tag, BlockChange.STORED, fresh)
            if (watch := self._ledger.of(domain.tenant).watch) is not None:
                watch.ask(len(stored), 0)
        return standing

    def pin(self, blocks: Sequence[Block]) -> None:
        """See `Tier.pin`."""
        for block in blocks:
            assert block.ref_count > 0, "pin adds a holder; match_and_pin makes the first"
            block.ref_count += 1

    def release(self, blocks: Sequence[Block], outcome: Outcome | None = None) -> None:
        """See `Tier.release`."""
        if not blocks:
            return
        account = self._ledger.of(blocks[0].tenant)
        if outcome is not None:
            self._uses.note(account, blocks, outcome, self._ledger.sample)
        unknown: Use | None = None
        unused, num_still_held = self._unused, 0
        num_unused = len(unused)
        for block in reversed(blocks):
            block.ref_count = num_holders = block.ref_count - 1
            if num_holders:
                assert num_holders > 0, f"{block} is released more often than it is held"
                num_still_held += 1
            elif block.parent is None:
                unused.append(block)
            else:
                if block.use is None:
                    unknown = block.use = unknown or self._uses.unknown(account)
                if not block.children:
                    self._evictions.offer(account, block)
        num_let_go = len(unused) - num_unused
        num_cached = len(blocks) - num_still_held - num_let_go
        if num_let_go and blocks[0].root in self.scrubs.roots:
            self.scrubs.add(unused[num_unused:])
        account.num_held -= num_let_go + num_cached
        account.num_cached += num_cached
        account.give_slots(num_let_go)
        num_used = account.num_used
        if num_used > account.maximum:
            self._evictions.trim(account)
        elif not num_used:
            self._ledger.leave(account)
        if self._ledger.has_strict:
            self._evictions.give_back()

    def expire(self) -> None:
        """Drops what nobody used for its time to live. To be called now and then; whatever looks at blocks does it."""
        if self.lower is not None:
            self.lower.expire()
        self._evictions.expire()

    def domains(self) -> list[Domain]:
        """Those of which something can be matched."""
        domains = {domain.root: domain for domain in self._tree.domains()}
        if self.lower is not None:
            domains.update((domain.root, domain) for domain in self.lower.domains())
        return list(domains.values())

    def close(self, tenant: TenantId) -> None:
        """Forgets what is known of a deleted tenant, as soon as it has no blocks."""
        self._ledger.close(tenant)
        self.windows.close(tenant)
        if self.lower is not None:
            self.lower.close(tenant)

    def drop(self, domains: Collection[Domain], tenants: Collection[TenantId]) -> Dropped:
        """Forgets domains of `tenants`: nothing of them is found from now on.

        What requests hold of them stays theirs until they let go of it, outside the tree. All unused slots of the
        tenants are to be scrubbed: what was evicted before had the same bytes.
        """
        num_blocks = sum(map(self._forget, domains))
        num_held = self.scrubs.begin(self.blocks, {domain.root for domain in domains}, tenants)
        self.windows.drop(tenants)
        num_host, num_disk = (0, 0) if self.lower is None else self.lower.drop(domains, tenants)
        self._evictions.give_back()
        return Dropped(num_blocks + num_held, num_host, num_disk, num_held)

    def expect_scrubs(self, domain: Domain) -> None:
        """Whatever is held of a domain that was dropped, or may have been, is to be scrubbed when it is let go of."""
        if domain.root not in self.scrubs.roots:
            self.scrubs.expect(self.blocks, domain.root)
            self.windows.expect_scrubs(domain.root)

    def drain_events(self) -> tuple[BlockEvent, ...]:
        """What changed since the last call, in order, one event per run of equal domain and change."""
        return self._events.drain()

    def snapshot(self) -> dict[DomainTag, bytes]:
        """Packed digests of all matchable blocks by domain, parent first."""
        digests = self._tree.digests()
        if self.lower is not None:
            for tag, below in self.lower.digests():
                if below:
                    digests[tag] = digests.get(tag, b"") + below
        return digests

    def check_invariants(self) -> None:
        """Raises AssertionError where the pool's books do not agree; walks everything."""
        check_pool(self._tree, self._ledger, self._unused, self._num_blocks)
        self.scrubs.check_invariants(self.blocks)
        self.windows.check_invariants(self.blocks, self._tree.blocks())
        if self.lower is not None:
            self.lower.check_invariants()

    def _use(self, account: Account, num_borrowed: int) -> TenantUse:
        use = self._ledger.use(account, num_borrowed)
        if self.lower is None:
            return use
        num_host, num_disk = self.lower.used_by(account.tenant)
        return replace(use, host_blocks=num_host, disk_blocks=num_disk)

    def _forget(self, domain: Domain) -> int:
        """Takes a domain out of the tree; how many of its blocks nobody held."""
        blocks = self._tree.remove_domain(domain.root)
        if blocks or (self.lower is not None and self.lower.has(domain)):
            self._events.add(domain.tag, BlockChange.CLEARED, ())
        if not blocks:
            return 0
        self.windows.forget(blocks)
        loose = [block for block in blocks if not block.ref_count]
        self._unused += loose
        account = self._ledger.of(domain.tenant)
        account.lose_cached(len(loose))
        if not account.num_used:
            self._ledger.leave(account)
        return len(loose)

    def _hold(self, account: Account, blocks: Sequence[Block]) -> None:
        num_taken = 0
        for block in blocks:
            num_holders = block.ref_count
            block.ref_count = num_holders + 1
            if not num_holders:
                num_taken += 1
        account.num_held += num_taken
        account.num_cached -= num_taken
