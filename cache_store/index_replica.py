"""A copy of parts of the index in this process: what incarnations hold of the domains that were asked for lately.

Pure state. Whoever feeds it (`cache_store/redis_replica.py`) applies every change of an incarnation in order from a
moment before a domain is loaded: then it does not matter at which moment the load was read, since the last change of a
digest decides and is applied last. Domains that were not asked for longest go first, but for one that is too large
itself: it goes alone, and is not loaded again. A hint like the index itself.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass

from cache_store.digest import DIGEST_BYTES
from cache_store.domain import DomainTag
from cache_store.events import BlockChange
from cache_store.index import Incarnation
from cache_store.index_stream import StreamedChange

MAX_DIGESTS = 1_000_000
"""Over all domains: about 90 MB."""

MAX_DOMAINS = 20_000
"""Also of domains of which nothing is held: a tenant may name as many partitions as it likes."""


MAX_REFUSED = 1_024
"""Domains that are remembered as too large."""

_TWO_DIGESTS = 2 * DIGEST_BYTES


class _Held:
    """What one incarnation holds of one domain."""

    __slots__ = ("changes", "digests")

    def __init__(self) -> None:
        self.digests: set[bytes] = set()
        self.changes: list[StreamedChange] | None = []
        """While it is being loaded: those since its beginning; None once it is known."""


@dataclass(frozen=True, slots=True)
class ReplicaLoad:
    """A load that has begun. It is another one than a later load of the same."""

    domain_tag: DomainTag
    incarnation: Incarnation
    held: _Held


class IndexReplica:
    """Owned by one event loop."""

    def __init__(self, max_digests: int = MAX_DIGESTS, max_domains: int = MAX_DOMAINS) -> None:
        self._max_digests = max_digests
        self._max_domains = max_domains
        self._domains: OrderedDict[DomainTag, dict[Incarnation, _Held]] = OrderedDict()
        self._num_digests = 0
        self._refused: OrderedDict[DomainTag, None] = OrderedDict()
        """Too large, until they shrink by a purge or an incarnation goes."""

    @property
    def max_domain_digests(self) -> int:
        """A domain with more gives way to all others, where there is not room for all."""
        return self._max_digests // 2

    @property
    def num_digests(self) -> int:
        """Digests over all domains and incarnations."""
        return self._num_digests

    @property
    def num_domains(self) -> int:
        """Domains of which something is known or being loaded."""
        return len(self._domains)

    def knows(self, domain_tag: DomainTag, incarnation: Incarnation) -> bool:
        """Whether all is known that the incarnation holds of the domain."""
        held = self._domains.get(domain_tag, {}).get(incarnation)
        return held is not None and held.changes is None

    def counts(
        self, domain_tag: DomainTag, digests: bytes, incarnations: Iterable[Incarnation]
    ) -> dict[Incarnation, int]:
        """Leading blocks of the chain `digests` that incarnations hold; those that are not known are not told."""
        domain = self._domains.get(domain_tag)
        if domain is None:
            return {}
        self._domains.move_to_end(domain_tag)
        found: dict[Incarnation, int] = {}
        first, last, guess = digests[:DIGEST_BYTES], digests[-DIGEST_BYTES:], 0
        for incarnation in incarnations:
            held = domain.get(incarnation)
            if held is None or held.changes is not None:
                continue
            known = held.digests
            if last in known:  # most hold all or nothing
                found[incarnation] = len(digests) // DIGEST_BYTES
            elif first in known:
                found[incarnation] = guess = _longest(digests, known, guess)
            else:
                found[incarnation] = 0
        return found

    def begin_load(self, domain_tag: DomainTag, incarnation: Incarnation) -> ReplicaLoad | None:
        """Changes from now on count for what will be loaded.

        None where it is known or being loaded already, and where the domain is too large.
        """
        if domain_tag in self._refused:
            return None
        domain = self._domains.setdefault(domain_tag, {})
        if incarnation in domain:
            return None
        held = domain[incarnation] = _Held()
        while len(self._domains) > self._max_domains:
            self._remove_domain(next(iter(self._domains)))
        return ReplicaLoad(domain_tag, incarnation, held)

    def finish_load(self, load: ReplicaLoad, digests: Iterable[bytes]) -> None:
        """`digests` were read after `begin_load`. Does nothing where it was forgotten meanwhile."""
        held = load.held
        if not self._is_on(load) or held.changes is None:
            return
        changes, held.changes = held.changes, None
        held.digests.update(digests)
        self._num_digests += len(held.digests)
        for change in changes:
            self._apply(held, change)
        self._bound(load.domain_tag)

    def refuse_load(self, load: ReplicaLoad) -> None:
        """It is too large to be read."""
        if self._is_on(load):
            self._refuse(load.domain_tag)

    def abandon_load(self, load: ReplicaLoad) -> None:
        """It could not be read; does nothing where it has ended."""
        if self._is_on(load) and load.held.changes is not None:
            self._remove(load.domain_tag, load.incarnation)

    def apply(self, incarnation: Incarnation, changes: Iterable[StreamedChange]) -> None:
        """Changes of an incarnation, in order; those of domains that nobody asked for are nothing to this replica."""
        for change in changes:
            if change.change is BlockChange.CLEARED:
                self._refused.pop(change.domain_tag, None)
            held = self._domains.get(change.domain_tag, {}).get(incarnation)
            if held is None:
                continue
            if held.changes is not None:
                held.changes.append(change)
                continue
            self._apply(held, change)
            self._bound(change.domain_tag)

    def forget(self, incarnation: Incarnation) -> None:
        """Nothing that is known of the incarnation counts any more."""
        for domain_tag in [tag for tag, domain in self._domains.items() if incarnation in domain]:
            self._remove(domain_tag, incarnation)
        self._refused.clear()

    def check_invariants(self) -> None:
        """Raises AssertionError where the books do not agree."""
        held = [each for domain in self._domains.values() for each in domain.values()]
        assert self._num_digests == sum(len(each.digests) for each in held if each.changes is None)
        assert all(not each.digests for each in held if each.changes is not None)
        assert all(self._domains.values()), "an empty domain is kept"
        assert self._num_digests <= self._max_digests
        assert len(self._domains) <= self._max_domains
        assert not self._refused.keys() & self._domains.keys()
        assert len(self._refused) <= MAX_REFUSED

    def _is_on(self, load: ReplicaLoad) -> bool:
        return self._domains.get(load.domain_tag, {}).get(load.incarnation) is load.held

    def _apply(self, held: _Held, change: StreamedChange) -> None:
        before = len(held.digests)
        if change.change is BlockChange.STORED:
            held.digests.update(each(change.digests))
        elif change.change is BlockChange.REMOVED:
            held.digests.difference_update(each(change.digests))
        else:
            held.digests.clear()
        self._num_digests += len(held.digests) - before

    def _bound(self, newest: DomainTag) -> None:
        """Forgets domains until what is left fits: `newest` alone where it is too large, else the others first."""
        if self._num_digests <= self._max_digests:
            return
        if sum(len(held.digests) for held in self._domains[newest].values()) > self.max_domain_digests:
            self._refuse(newest)
        else:
            self._domains.move_to_end(newest)
        while self._num_digests > self._max_digests:
            self._remove_domain(next(iter(self._domains)))

    def _refuse(self, domain_tag: DomainTag) -> None:
        self._remove_domain(domain_tag)
        self._refused[domain_tag] = None
        if len(self._refused) > MAX_REFUSED:
            self._refused.popitem(last=False)

    def _remove_domain(self, domain_tag: DomainTag) -> None:
        for incarnation in list(self._domains[domain_tag]):
            self._remove(domain_tag, incarnation)

    def _remove(self, domain_tag: DomainTag, incarnation: Incarnation) -> None:
        domain = self._domains[domain_tag]
        held = domain.pop(incarnation)
        if held.changes is None:
            self._num_digests -= len(held.digests)
        if not domain:
            del self._domains[domain_tag]


def leading(digests: bytes, known: Container[bytes]) -> int:
    """Leading digests of a chain that are among `known`, by binary search: who has a block has those before it."""
    if digests[:DIGEST_BYTES] not in known:
        return 0
    if digests[-DIGEST_BYTES:] in known:
        return len(digests) // DIGEST_BYTES
    return _longest(digests, known)


def _longest(digests: bytes, known: Container[bytes], guess: int = 0) -> int:
    """The same for a chain whose first digest is known and whose last is not.

    `guess` is what another one holds, 0 where nobody is known: of a prompt that many hold in part, they often hold the
    same part.
    """
    low, high = 0, len(digests) - DIGEST_BYTES  # starts of one that is known and of one that is not
    if guess:
        after = guess * DIGEST_BYTES
        if digests[after : after + DIGEST_BYTES] in known:
            low = after
        elif digests[after - DIGEST_BYTES : after] in known:
            return guess
        else:
            high = after - DIGEST_BYTES
    while high - low > DIGEST_BYTES:
        middle = (low + high) // _TWO_DIGESTS * DIGEST_BYTES
        if digests[middle : middle + DIGEST_BYTES] in known:
            low = middle
        else:
            high = middle
    return low // DIGEST_BYTES + 1


def each(digests: bytes) -> Iterator[bytes]:
    """Packed digests one by one."""
    for start in range(0, len(digests), DIGEST_BYTES):
        yield digests[start : start + DIGEST_BYTES]
