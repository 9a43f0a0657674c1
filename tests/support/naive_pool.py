"""What a pool of several tenants should hold, in plain dicts over whole prefixes; nothing in it is fast.

It does not decide who pays: it is told what each tenant lost and asserts that the rule allows it. What a tenant loses
first it knows itself where the order is LRU's.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from cache_store.domain import Domain
from cache_store.policy import Outcome
from cache_store.quota import QuotaTable
from cache_store.tier_kind import TierKind

Prefix = tuple[int, tuple[int, ...]]
"""(domain number, all tokens up to a block's end)."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """A block that was held when its domain was dropped."""

    time: int
    """Which drop it was."""
    prefix: Prefix


@dataclass(frozen=True, slots=True)
class NaiveUse:
    """The last use of a prefix; the order in which they go is that of these fields."""

    live: bool
    """False: its session has ended, and nothing else branched off."""
    order: int
    height: int
    """Minus its length: of one request the tail goes first."""
    expires_s: float


@dataclass(frozen=True, slots=True)
class Bounds:
    """A tenant's quota in blocks."""

    minimum: int
    maximum: int
    weight: float
    strict: bool


class NaivePool:
    """Tenants are named as in the domains."""

    def __init__(self, num_blocks: int, domains: tuple[Domain, ...], block_size: int) -> None:
        self.num_blocks = num_blocks
        self.domains = domains
        self.block_size = block_size
        self.tenants = sorted({domain.tenant for domain in domains})
        self.holders: Counter[Prefix] = Counter()
        self.private: Counter[str] = Counter()
        self.dropped: Counter[Dropped] = Counter()
        """Holders of each."""
        self.kept: Counter[str] = Counter()
        """Unused slots that only this strict tenant gets."""
        self.uses: dict[Prefix, NaiveUse | None] = {}
        """Of every resident prefix."""
        self.shared: set[Prefix] = set()
        self.lending: set[str] = set()
        """Tenants whose guarantees are lent too, as the pool says."""
        self.guarded: set[str] = set()
        """Tenants whose order is LRU's whatever their policy says, as the pool says."""
        self.lost: Counter[str] = Counter()
        """Blocks that each tenant ever lost."""
        self._num_uses = 0
        self.set_quotas(QuotaTable(0, {}))

    def set_quotas(self, table: QuotaTable) -> None:
        """Other bounds."""
        self.bounds = {}
        for tenant in self.tenants:
            quota = table.of(tenant)
            share = quota.share(TierKind.DEVICE)
            minimum, maximum = (math.floor(part * self.num_blocks) for part in (share.minimum, share.maximum))
            self.bounds[tenant] = Bounds(minimum, maximum, quota.weight, share.minimum == share.maximum)
            self._free(tenant, 0)

    # what there is

    def tenant(self, prefix: Prefix) -> str:
        """Whose."""
        return self.domains[prefix[0]].tenant

    def cached(self, tenant: str) -> list[Prefix]:
        """Resident and held by nobody."""
        return [each for each in self.uses if self.holders[each] == 0 and self.tenant(each) == tenant]

    def held(self, tenant: str) -> int:
        """Blocks that its requests hold."""
        dropped = sum(count > 0 and self.tenant(each.prefix) == tenant for each, count in self.dropped.items())
        resident = sum(self.holders[each] > 0 and self.tenant(each) == tenant for each in self.uses)
        return self.private[tenant] + dropped + resident

    def used(self, tenant: str) -> int:
        """Blocks that it has."""
        return self.held(tenant) + len(self.cached(tenant))

    def unused(self) -> int:
        """Blocks that nobody has."""
        return self.num_blocks - sum(map(self.used, self.tenants))

    def to_keep(self, tenant: str) -> int:
        """What should be kept free for a strict tenant."""
        bounds = self.bounds[tenant]
        return max(0, bounds.minimum - self.used(tenant)) if bounds.strict else 0

    def reclaimable(self, tenant: str) -> int:
        """Blocks that others may take."""
        return max(0, min(len(self.cached(tenant)), self.used(tenant) - self.protected(tenant)))

    def protected(self, tenant: str) -> int:
        """Blocks that nobody takes for others."""
        return 0 if tenant in self.lending else self.bounds[tenant].minimum

    def available(self, tenant: str) -> int:
        """What it may be granted."""
        others = [each for each in self.tenants if each != tenant]
        free = self.unused() - sum(self.kept[each] for each in others)
        within_pool = free + len(self.cached(tenant)) + sum(map(self.reclaimable, others))
        return max(0, min(within_pool, self.bounds[tenant].maximum - self.held(tenant)))

    def matched(self, number: int, ids: list[int], limit: int) -> list[Prefix]:
        """Resident full blocks of a prompt."""
        ends = range(self.block_size, min(limit, len(ids)) + 1, self.block_size)
        found: list[Prefix] = []
        for end in ends:
            if (number, tuple(ids[:end])) not in self.uses:
                break
            found.append((number, tuple(ids[:end])))
        return found

    def match_length(self, number: int, ids: list[int], limit: int) -> int:
        """Leading tokens that are resident, a partly equal last block included."""
        length = len(self.matched(number, ids, limit)) * self.block_size
        runs = [0]
        for other_number, other in self.uses:
            if other_number == number and len(other) == length + self.block_size and [*other[:length]] == ids[:length]:
                run = 0
                while length + run < min(limit, len(ids)) and run < self.block_size:
                    if other[length + run] != ids[length + run]:
                        break
                    run += 1
                runs.append(run)
        return length + max(runs)

    # what happens

    def hold(self, prefixes: Sequence[Prefix | Dropped]) -> None:
        """One more holder of each."""
        for prefix in prefixes:
            if isinstance(prefix, Dropped):
                self.dropped[prefix] += 1
            else:
                self.holders[prefix] += 1

    def grant(self, tenant: str, num_blocks: int) -> None:
        """It gets private blocks."""
        self.private[tenant] += num_blocks
        self.kept[tenant] -= min(self.kept[tenant], num_blocks)

    def keep_free(self) -> None:
        """Strict tenants get back what they lack, as far as slots are free."""
        for tenant in self.tenants:
            free = self.unused() - sum(self.kept.values())
            self.kept[tenant] += min(free, self.to_keep(tenant) - self.kept[tenant])

    def commit(self, prefix: Prefix) -> bool:
        """A private block becomes matchable and held; False where an equal one stood there."""
        is_new = prefix not in self.uses
        self.private[self.tenant(prefix)] -= 1
        self.holders[prefix] += 1
        if is_new:
            self.uses[prefix] = None
        else:
            self._free(self.tenant(prefix), 1)
        if is_new:
            number, ids = prefix
            parent = (number, ids[: -self.block_size])
            if len(parent[1]) and len(self._children(parent)) > 1:
                self.shared.update((number, parent[1][:end]) for end in range(1, len(parent[1]) + 1))
        return is_new

    def drop(self, number: int, time: int) -> tuple[int, int]:
        """Forgets a domain; how many resident blocks, and how many of them are held."""
        gone = [each for each in self.uses if each[0] == number]
        num_held = 0
        for prefix in gone:
            del self.uses[prefix]
            self.shared.discard(prefix)
            if num_holders := self.holders.pop(prefix, 0):
                self.dropped[Dropped(time, prefix)] = num_holders
                num_held += 1
            else:
                self._free(self.tenant(prefix), 1)
        return len(gone), num_held

    def release(
        self, prefixes: list[Prefix | Dropped | None], tenant: str, outcome: Outcome | None, now_s: float
    ) -> None:
        """Ends one hold of each (None: a private block)."""
        self._num_uses += 1
        for prefix in prefixes:
            if prefix is None:
                self.private[tenant] -= 1
                self._free(tenant, 1)
                continue
            if isinstance(prefix, Dropped):
                self.dropped[prefix] -= 1
                if not self.dropped[prefix]:
                    self._free(tenant, 1)
                continue
            self.holders[prefix] -= 1
            if outcome is not None:
                live = prefix in self.shared or not outcome.session_end
                expires_s = now_s + outcome.ttl_s
                self.uses[prefix] = NaiveUse(live, self._num_uses, -len(prefix[1]), expires_s)
            elif self.uses[prefix] is None and not self.holders[prefix]:
                self.uses[prefix] = NaiveUse(True, self._num_uses, -len(prefix[1]), math.inf)

    def expire(self, now_s: float) -> None:
        """Drops leaves whose time is over, and what becomes such a leaf."""
        while dropped := [
            each for tenant in self.tenants for each in self._leaves(tenant) if self._use(each).expires_s <= now_s
        ]:
            for prefix in dropped:
                self._lose(prefix)

    def lose_oldest(self, tenant: str, num_blocks: int) -> None:
        """What LRU takes of a tenant."""
        for _ in range(num_blocks):
            self._lose(min(self._leaves(tenant), key=self._order))

    def lose(self, tenant: str, prefixes: set[Prefix]) -> None:
        """What another policy took of a tenant; it must have been cached, and leave no child behind."""
        for prefix in sorted(prefixes, key=lambda each: -len(each[1])):
            assert self.tenant(prefix) == tenant
            assert prefix in self._leaves(tenant), "evicted while it was held or had children"
            self._lose(prefix)

    def check_payers(self, paid: Counter[str], asking: str | None, num_blocks: int) -> None:
        """The rule of lending: called before `paid` is taken from the model."""
        after = {each: self.used(each) - paid[each] + (num_blocks if each == asking else 0) for each in self.tenants}
        left = {each: len(self.cached(each)) - paid[each] for each in self.tenants}
        assert min(left.values()) >= 0
        for payer, num_paid in paid.items():
            bounds = self.bounds[payer]
            own = max(0, self.used(payer) + (num_blocks if payer == asking else 0) - bounds.maximum)
            if num_paid <= own:
                continue  # what it may not have anyway
            others = [
                each for each in self.tenants if each != payer and left[each] > 0 and after[each] > self.protected(each)
            ]
            if payer != asking:
                assert after[payer] >= self.protected(payer), "a tenant below its guarantee paid for another"
            elif after[payer] < self.protected(payer):
                assert not others, "a tenant paid out of its guarantee while others were above theirs"
            excess = (after[payer] - self.protected(payer) + 1) / bounds.weight
            for other in others:
                least = (after[other] - self.protected(other)) / self.bounds[other].weight
                assert excess >= least - 1e-9, f"{payer} paid, {other} had more above its guarantee"

    def num_due(self, asking: str | None, num_blocks: int) -> int:
        """Blocks that must go, from whomever: no more may be evicted than needed."""
        if asking is None:
            free = self.unused() - sum(self.kept.values())
            missing = sum(self.to_keep(each) - self.kept[each] for each in self.tenants) - free
            return min(max(0, missing), sum(map(self.reclaimable, self.tenants)))
        free = self.unused() - sum(self.kept[each] for each in self.tenants if each != asking)
        return max(0, num_blocks - free, self.used(asking) + num_blocks - self.bounds[asking].maximum)

    def _children(self, prefix: Prefix) -> list[Prefix]:
        number, ids = prefix
        below = [each for each in self.uses if each[0] == number and len(each[1]) == len(ids) + self.block_size]
        return [each for each in below if each[1][: len(ids)] == ids]

    def _leaves(self, tenant: str) -> list[Prefix]:
        return [each for each in self.cached(tenant) if not self._children(each)]

    def _use(self, prefix: Prefix) -> NaiveUse:
        use = self.uses[prefix]
        assert use is not None, "let go without a use"
        return use

    def _order(self, prefix: Prefix) -> tuple[bool, int, int]:
        use = self._use(prefix)
        return (use.live or self.tenant(prefix) in self.guarded, use.order, use.height)

    def _lose(self, prefix: Prefix) -> None:
        del self.uses[prefix]
        self.shared.discard(prefix)
        self.lost[self.tenant(prefix)] += 1
        self._free(self.tenant(prefix), 1)

    def _free(self, tenant: str, num_blocks: int) -> None:
        """A strict tenant's slots stay its own."""
        self.kept[tenant] = min(self.kept[tenant] + num_blocks, self.to_keep(tenant))
