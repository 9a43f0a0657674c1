"""Pins: cached blocks that a tenant keeps from eviction for a time.

A pin holds full blocks of the pool, so that nothing evicts them, and in window groups it locks the slots that are read
from its end on; a block in several pins of a tenant counts once against its limit. Pins are the last to give way:
`yield_for` ends some where a request could not run otherwise. They are named inside a tenant: another tenant's pin is
absent, and so are those of an epoch that has passed, which only wait for their end. What reuses pinned blocks is none
of its business. Owned by the engine's thread.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import NewType

from cache_store.block_pool import BlockPool
from cache_store.clock import Clock
from cache_store.domain import Domain, ScopeName, TenantId
from cache_store.errors import AlreadyExistsError, LimitExceededError
from cache_store.prefix_tree import Block
from cache_store.tokens import PackedTokens, count

PinId = NewType("PinId", str)
"""Names a pin inside a tenant."""

MAX_PINS = 100
"""Of one tenant in one pool: pins of the same blocks cost no further blocks, but each has to be kept and listed."""

HOPELESS_RETRY_S = 3_600.0
"""What a tenant is told to wait whose limit no end of a pin would satisfy: somebody has to raise it."""


@dataclass(frozen=True, slots=True)
class PinRequest:
    """What is to be pinned, and until when."""

    domain: Domain
    pin_id: PinId
    tokens: PackedTokens
    expires_unix_s: float
    name: str
    """For whoever lists pins."""


@dataclass(frozen=True, slots=True)
class PinInfo:
    """A pin as its tenant sees it."""

    pin_id: PinId
    name: str
    num_blocks: int
    expires_unix_s: float
    model: ScopeName
    """Through which it was pinned."""


@dataclass(frozen=True, slots=True, eq=False)
class _Pin:
    info: PinInfo
    domain: Domain
    blocks: tuple[Block, ...]
    expires_s: float
    """By the monotonic clock."""


class PinTable:
    """The pins of one pool."""

    def __init__(self, pool: BlockPool, block_size: int, clock: Clock) -> None:
        self._pool = pool
        self._block_size = block_size
        self._clock = clock
        self._pins: dict[TenantId, dict[PinId, _Pin]] = {}
        self._holds: dict[TenantId, Counter[Block]] = {}
        """How many pins of the tenant have the block."""
        self._next_end_s = math.inf
        """No pin ends before."""
        self._num_yielded = 0

    @property
    def num_yielded(self) -> int:
        """Pins that were ended before their time."""
        return self._num_yielded

    def num_pinned(self, tenant: TenantId) -> int:
        """Blocks that pins of the tenant hold, each counted once."""
        return len(self._holds.get(tenant, ()))

    def max_pinned(self, tenant: TenantId) -> int:
        """Blocks that they may hold. A limit that was lowered ends no pin, it allows no further one."""
        return self._pool.quotas.of(tenant).max_pinned_blocks(self._pool.num_blocks)

    def blocks(self) -> Iterator[Block]:
        """Every hold of every pin."""
        return chain.from_iterable(pin.blocks for pin in self._all())

    def pin(self, request: PinRequest) -> int:
        """Pins the cached full blocks of a prompt; how many. 0: nothing of it is cached, and there is no pin.

        A pin that is there already is left as it is. Raises LimitExceededError beyond the tenant's limits, and
        AlreadyExistsError where the id is that of a pin in another domain of the tenant.
        """
        domain = request.domain
        self.expire()
        standing = self._pins.get(domain.tenant, {}).get(request.pin_id)
        if standing is not None:
            if standing.domain != domain:
                raise AlreadyExistsError("your tenant has a pin of this id in another partition or epoch")
            return standing.info.num_blocks
        match = self._pool.match_and_pin(domain, request.tokens, self._num_full_tokens(request.tokens))
        if match.partial is not None:
            self._pool.release((match.partial.source,))
        if not match.blocks:
            return 0
        try:
            self._make_allowance(domain, match.blocks)
            self._lock(domain, match.blocks)
        except LimitExceededError:
            self._pool.release(match.blocks)
            raise
        self._add(request, match.blocks)
        return len(match.blocks)

    def unpin(self, domain: Domain, pin_id: PinId) -> bool:
        """Ends a pin of the domain's tenant and epoch, whatever its partition. False where there is none."""
        pin = self._find(domain, pin_id)
        if pin is None:
            return False
        self._end(pin)
        return True

    def of(self, domain: Domain) -> tuple[PinInfo, ...]:
        """Pins of the domain's tenant and epoch, whatever their partition; those that end first come first."""
        self.expire()
        pins = (
            pin for pin in self._pins.get(domain.tenant, {}).values() if pin.domain.tenant_epoch == domain.tenant_epoch
        )
        return tuple(pin.info for pin in sorted(pins, key=_end_order))

    def expire(self) -> None:
        """Ends pins whose time is over. To be called now and then."""
        now_s = self._clock.monotonic_s()
        if now_s < self._next_end_s:
            return
        for pin in [pin for pin in self._all() if pin.expires_s <= now_s]:
            self._end(pin)
        self._next_end_s = min((pin.expires_s for pin in self._all()), default=math.inf)

    def yield_for(self, tenants: Collection[TenantId], num_blocks: int) -> int:
        """Ends pins of `tenants`, those that end first, until they alone held `num_blocks` blocks; how many they held.

        The blocks stay cached until they are evicted. A pin that would let go of nothing, since requests use all of its
        blocks, stays.
        """
        num_let_go = 0
        pins = [pin for tenant in tenants for pin in self._pins.get(tenant, {}).values()]
        for pin in sorted(pins, key=_end_order):
            if num_let_go >= num_blocks:
                break
            if not any(self._holds_alone(block) for block in pin.blocks):
                continue
            num_let_go += sum(block.ref_count == 1 for block in pin.blocks)
            self._end(pin)
            self._num_yielded += 1
        return num_let_go

    def end_domains(self, domains: Iterable[Domain]) -> None:
        """Ends all pins of domains."""
        roots = {domain.root: domain.tenant for domain in domains}
        for tenant in {*roots.values()}:
            for pin in [pin for pin in self._pins.get(tenant, {}).values() if pin.domain.root in roots]:
                self._end(pin)

    def end_blocks(self, blocks: Collection[Block]) -> None:
        """Ends all pins of any of these blocks, which are one tenant's."""
        gone = {block.uid for block in blocks}
        tenant = next(iter(blocks)).tenant
        for pin in [pin for pin in self._pins.get(tenant, {}).values() if any(each.uid in gone for each in pin.blocks)]:
            self._end(pin)

    def check_invariants(self) -> None:
        """Raises AssertionError where the books do not agree with each other or with the pool."""
        for tenant, pins in self._pins.items():
            assert 0 < len(pins) <= MAX_PINS, "a tenant without pins is forgotten"
            for pin_id, pin in pins.items():
                assert pin.info.pin_id == pin_id
                assert pin.domain.tenant == tenant, "a pin is filed under another tenant"
                assert 0 < pin.info.num_blocks == len(pin.blocks)
                assert pin.expires_s >= self._next_end_s, "a pin would be forgotten at its end"
                _check_chain(pin)
            assert self._holds[tenant] == Counter(chain.from_iterable(pin.blocks for pin in pins.values()))
        assert self._holds.keys() == self._pins.keys()

    def _num_full_tokens(self, tokens: PackedTokens) -> int:
        return count(tokens) // self._block_size * self._block_size

    def _find(self, domain: Domain, pin_id: PinId) -> _Pin | None:
        pin = self._pins.get(domain.tenant, {}).get(pin_id)
        return None if pin is None or pin.domain.tenant_epoch != domain.tenant_epoch else pin

    def _all(self) -> Iterator[_Pin]:
        return chain.from_iterable(pins.values() for pins in self._pins.values())

    def _make_allowance(self, domain: Domain, blocks: tuple[Block, ...]) -> None:
        """Raises LimitExceededError where the tenant may not pin `blocks` too.

        Pins of an epoch that has passed keep nobody from pinning: nothing can reach their blocks.
        """
        if self._exceeds(domain.tenant, blocks):
            for pin in list(self._pins.get(domain.tenant, {}).values()):
                if pin.domain.tenant_epoch != domain.tenant_epoch:
                    self._end(pin)
        if not self._exceeds(domain.tenant, blocks):
            return
        pins = self._pins.get(domain.tenant, {})
        first_s = min((pin.expires_s for pin in pins.values()), default=math.inf)
        limit = self.max_pinned(domain.tenant)
        can_wait = bool(pins) and len(blocks) <= limit
        retry_after_s = max(1.0, first_s - self._clock.monotonic_s()) if can_wait else HOPELESS_RETRY_S
        if len(pins) >= MAX_PINS:
            raise LimitExceededError(
                "pins", f"your tenant has {len(pins)} pins on a worker, which is its limit; unpin some", retry_after_s
            )
        advice = "unpin others" if can_wait else f"a prompt of up to {limit * self._block_size} tokens can be pinned"
        raise LimitExceededError(
            "pinned blocks",
            f"your tenant has pinned {self.num_pinned(domain.tenant)} blocks on a worker and may pin {limit}; this "
            f"prompt has {len(blocks)} cached ones; {advice}",
            retry_after_s,
        )

    def _lock(self, domain: Domain, blocks: tuple[Block, ...]) -> None:
        """Raises LimitExceededError where the tenant may not keep as many slots of window groups."""
        part = self._pool.quotas.of(domain.tenant).max_pinned
        if self._pool.windows.may_lock(blocks, part) and self._pool.windows.lock(blocks):
            return
        pins = self._pins.get(domain.tenant, {})
        first_s = min((pin.expires_s for pin in pins.values()), default=math.inf)
        raise LimitExceededError(
            "pinned windows",
            "the end of a pinned prompt keeps the last window of the model's sliding layers, and your tenant's part of "
            "the slots for windows on a worker has no room for one more; "
            + ("unpin others" if pins else "no prompt can be pinned with it"),
            max(1.0, first_s - self._clock.monotonic_s()) if pins else HOPELESS_RETRY_S,
        )

    def _exceeds(self, tenant: TenantId, blocks: tuple[Block, ...]) -> bool:
        holds: Collection[Block] = self._holds.get(tenant, ())
        num_new = sum(block not in holds for block in blocks)
        is_full = len(self._pins.get(tenant, {})) >= MAX_PINS
        return is_full or len(holds) + num_new > self.max_pinned(tenant)

    def _add(self, request: PinRequest, blocks: tuple[Block, ...]) -> None:
        tenant = request.domain.tenant
        expires_s = self._clock.monotonic_s() + request.expires_unix_s - self._clock.unix_s()
        info = PinInfo(request.pin_id, request.name, len(blocks), request.expires_unix_s, request.domain.model)
        self._pins.setdefault(tenant, {})[request.pin_id] = _Pin(info, request.domain, blocks, expires_s)
        self._holds.setdefault(tenant, Counter()).update(blocks)
        self._next_end_s = min(self._next_end_s, expires_s)

    def _end(self, pin: _Pin) -> None:
        tenant = pin.domain.tenant
        pins, holds = self._pins[tenant], self._holds[tenant]
        del pins[pin.info.pin_id]
        for block in pin.blocks:
            holds[block] -= 1
            if not holds[block]:
                del holds[block]
        if not pins:
            del self._pins[tenant], self._holds[tenant]
        self._pool.windows.unlock(pin.blocks)
        self._pool.release(pin.blocks)

    def _holds_alone(self, block: Block) -> bool:
        return block.ref_count == self._holds[block.tenant][block]


def _end_order(pin: _Pin) -> tuple[float, TenantId, PinId]:
    return (pin.expires_s, pin.domain.tenant, pin.info.pin_id)


def _check_chain(pin: _Pin) -> None:
    for parent, block in zip((None, *pin.blocks), pin.blocks, strict=False):
        assert block.in_tree, "a pinned block cannot be matched"
        assert block.ref_count > 0, "a pinned block is held by nobody"
        assert block.root == pin.domain.root, "a pin holds another domain's block"
        assert parent is None or block.parent is parent, "a pin's blocks are no chain"
