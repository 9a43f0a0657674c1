"""The accounts of all tenants that a pool has met, and the sums over them.

What is asked for every request looks at tenants only that have blocks, or for whom some are kept: there may be many
more. Decides nothing about blocks; owned by the pool.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from cache_store.account import Account
from cache_store.domain import TenantId
from cache_store.policy import EvictionPolicy
from cache_store.quota import EMPTY_QUOTAS, QuotaTable
from cache_store.reuse_curves import ReuseCurves
from cache_store.shadow import Sample, Watch, WatchRules
from cache_store.tier_kind import TierKind
from cache_store.usage import TenantUse

PolicyMaker = Callable[[], EvictionPolicy]
"""Makes the policy of one tenant."""


class Ledger:
    """Accounts by tenant. An account stays when its blocks have gone: its policy has learnt something."""

    __slots__ = (
        "_accounts",
        "_guaranteed",
        "_make_policy",
        "_num_blocks",
        "_num_strict",
        "_present",
        "_quotas",
        "_sample",
        "_tier",
        "_watch_rules",
        "reuse",
    )

    def __init__(self, tier: TierKind, num_blocks: int, policy: PolicyMaker, watch_rules: WatchRules) -> None:
        self._tier = tier
        self._num_blocks = num_blocks
        self._make_policy = policy
        self._watch_rules = watch_rules
        self._sample = Sample(num_blocks)
        self._quotas = EMPTY_QUOTAS
        self._accounts: dict[TenantId, Account] = {}
        self._present: dict[TenantId, Account] = {}
        self._guaranteed: dict[TenantId, Account] = {}
        self._num_strict = 0
        self.reuse = ReuseCurves(watch_rules.curve_room if tier is TierKind.DEVICE else 0, num_blocks)
        """How often tenants would hit with more or less room."""

    @property
    def quotas(self) -> QuotaTable:
        """In force now."""
        return self._quotas

    @property
    def present(self) -> Collection[Account]:
        """Accounts that have blocks, or for which some are kept."""
        return self._present.values()

    @property
    def everybody(self) -> Collection[Account]:
        """All accounts."""
        return self._accounts.values()

    @property
    def has_strict(self) -> bool:
        """Whether blocks are kept for anybody."""
        return self._num_strict > 0

    @property
    def sample(self) -> Sample:
        """Blocks that are followed."""
        return self._sample

    def of(self, tenant: TenantId) -> Account:
        """Its account; opens one."""
        account = self._accounts.get(tenant)
        if account is None:
            account = self._accounts[tenant] = Account(tenant, self._make_policy())
            account.curve = self.reuse.open(tenant)
            self._take_quota(account)
        return account

    def set_quotas(self, quotas: QuotaTable) -> None:
        """Other bounds from now on."""
        self._quotas = quotas
        for tenant, quota in quotas.quotas.items():
            if quota.share(self._tier).minimum > 0:
                self.of(tenant)
        for account in list(self._accounts.values()):
            self._take_quota(account)
            self._forget(account)
        self._num_strict = sum(account.minimum for account in self._accounts.values() if account.strict)
        self._guaranteed = {each.tenant: each for each in self._accounts.values() if each.minimum}
        self._present = {each.tenant: each for each in self._accounts.values() if each.num_used or each.strict}

    def enter(self, account: Account) -> None:
        """The account is about to have blocks."""
        self._present[account.tenant] = account

    def leave(self, account: Account) -> None:
        """The account has no blocks."""
        if not account.strict:
            self._present.pop(account.tenant, None)
        if account.is_closed:
            self._forget(account)

    def is_alone(self, account: Account) -> bool:
        """Whether nobody else has blocks, and none are kept for anybody else."""
        return len(self._present) == 1 and account.tenant in self._present

    def close(self, tenant: TenantId) -> None:
        """The tenant is deleted: what its policy has learnt goes with its last block and its guarantee."""
        account = self._accounts.get(tenant)
        if account is not None:
            account.is_closed = True
            self._forget(account)

    def guarantees(self) -> dict[TenantId, int]:
        """Of those that have one."""
        return {tenant: account.minimum for tenant, account in self._guaranteed.items()}

    def limit(self, account: Account) -> int:
        """Blocks that it could have if nobody else used the pool."""
        others = self._num_strict - (account.minimum if account.strict else 0)
        return min(account.maximum, self._num_blocks - others)

    @property
    def num_blocks(self) -> int:
        """Of the whole tier."""
        return self._num_blocks

    def num_free(self, num_unused: int) -> int:
        """Unused slots that are kept for nobody."""
        return num_unused - sum(account.num_kept for account in self.present) if self._num_strict else num_unused

    def deficits(self) -> list[tuple[Account, int]]:
        """Strict tenants that are still to get slots back, and how many, in the order in which they do."""
        by_name = sorted(self.present, key=lambda account: account.tenant)
        due = ((account, account.num_to_keep - account.num_kept) for account in by_name)
        return [(account, number) for account, number in due if number]

    def num_to_keep(self) -> int:
        """Slots that strict tenants are still to get back."""
        return sum(account.num_to_keep - account.num_kept for account in self.present) if self._num_strict else 0

    def keep(self, num_free: int) -> None:
        """Keeps free slots for strict tenants that are still to get some back."""
        for account in sorted(self.present, key=lambda account: account.tenant):
            num_kept = min(num_free, account.num_to_keep - account.num_kept)
            account.num_kept += num_kept
            num_free -= num_kept

    def borrowed(self) -> int:
        """Blocks that tenants have beyond their guarantees."""
        return sum(max(0, account.num_used - account.minimum) for account in self.present)

    def use(self, account: Account, num_borrowed: int) -> TenantUse:
        """What the account has, where all borrow `num_borrowed` blocks."""
        by_others = num_borrowed - max(0, account.num_used - account.minimum)
        num_lent = 0 if account.strict else min(by_others, max(0, account.minimum - account.num_used))
        return TenantUse(
            tenant=account.tenant,
            guaranteed_blocks=account.minimum,
            max_blocks=self.limit(account),
            used_blocks=account.num_used,
            held_blocks=account.num_held,
            lent_blocks=num_lent,
            evicted_blocks=account.num_evicted,
            evicted_for_others=account.num_evicted_for_others,
            caused_evictions=account.num_caused,
        )

    def _forget(self, account: Account) -> None:
        if account.is_closed and not account.num_used and not account.minimum:
            self._accounts.pop(account.tenant, None)
            self.reuse.close(account.tenant)

    def _take_quota(self, account: Account) -> None:
        quota = self._quotas.of(account.tenant)
        account.take_quota(quota, quota.share(self._tier), self._num_blocks)
        if account.minimum == 0:
            account.watch = None
            return
        if account.watch is None:
            account.watch = Watch(self._watch_rules)
        account.watch.guarantee(self._sample.part_of(account.minimum))
