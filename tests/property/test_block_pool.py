"""Block pool and prefix tree against a naive model that stores whole prefixes in plain lists."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from cache_store.block_pool import BlockPool
from cache_store.clock import ManualClock
from cache_store.digest import Hasher, chain, xxh3_128
from cache_store.events import BlockChange
from cache_store.prefix_tree import Block
from cache_store.tiers import Granted, Short
from cache_store.tokens import PackedTokens, pack, part
from tests.support.domains import make_domain
from tests.support.geometry import one_group, two_groups
from tests.support.outcomes import make_outcome

BLOCK = 2
DOMAINS = (make_domain("acme"), make_domain("acme", epoch="e2"), make_domain("acme", partition="p"))
Prefix = tuple[int, tuple[int, ...]]
"""(domain number, all tokens up to a block's end)."""


def _four_bits(data: bytes) -> bytes:
    return bytes([xxh3_128(data)[0] & 15]) * 16


class Held(NamedTuple):
    """Blocks that a request holds, and what the model thinks they are (None: not in the tree)."""

    blocks: tuple[Block, ...]
    prefixes: tuple[Prefix | None, ...]


class PoolMachine(RuleBasedStateMachine):
    """Requests that match, write, commit, and end in any order, in a pool that is too small."""

    held = Bundle("held")
    prompts = st.tuples(st.integers(0, len(DOMAINS) - 1), st.lists(st.integers(0, 1), min_size=1, max_size=11))

    @initialize(capacity=st.integers(1, 12), groups=st.integers(1, 2), hasher=st.sampled_from([xxh3_128, _four_bits]))
    def start(self, capacity: int, groups: int, hasher: Hasher) -> None:
        self.pool = BlockPool(one_group(BLOCK) if groups == 1 else two_groups(BLOCK), capacity, ManualClock(), hasher)
        self.exact_digests = hasher is xxh3_128
        self.capacity = capacity
        self.holders: dict[Prefix, int] = {}
        self.cached: list[Prefix] = []
        self.num_private = 0
        self.mirror: dict[bytes, set[bytes]] = {}

    @rule(target=held, prompt=prompts, commit_blocks=st.integers(0, 6))
    def request(self, prompt: tuple[int, list[int]], commit_blocks: int):
        number, ids = prompt
        domain, tokens, limit = DOMAINS[number], pack(ids), len(ids) - 1
        assert self.pool.match_length(domain, tokens, limit) == self._expected_match(number, ids, limit)
        before = list(self.cached)
        match = self.pool.match_and_pin(domain, tokens, limit)
        matched = [(number, tuple(ids[: (i + 1) * BLOCK])) for i in range(len(match.blocks))]
        for prefix in matched:
            self._hold(prefix)
        if match.partial is not None:
            self._check_partial(number, ids, len(matched), match.partial.source, match.partial.num_tokens, limit)
            self.pool.release((match.partial.source,))
        wanted = -(-len(ids) // BLOCK) - len(matched)
        granted = self.pool.allocate(domain, wanted)
        if wanted > self.capacity - self._num_held():
            assert granted == Short(self.capacity - self._num_held())
            self.pool.release(match.blocks)
            self._release(matched)
            self.cached = before  # what was not used is as recent as it was
            return multiple()
        assert isinstance(granted, Granted)
        self._allocate(wanted)
        return self._commit(number, ids, list(match.blocks), granted.blocks, commit_blocks)

    def _commit(self, number: int, ids: list[int], blocks: list[Block], new: tuple[Block, ...], limit: int) -> Held:
        prefixes: list[Prefix | None] = [(number, tuple(ids[: (i + 1) * BLOCK])) for i in range(len(blocks))]
        for block in new:
            start, stop = len(blocks) * BLOCK, (len(blocks) + 1) * BLOCK
            if stop > len(ids) or limit <= 0:
                blocks.append(block)
                prefixes.append(None)
                limit = 0
                continue
            limit -= 1
            parent = blocks[-1] if blocks else None
            blocks += self.pool.commit(DOMAINS[number], parent, (block,), part(pack(ids), start, stop))
            prefixes.append((number, tuple(ids[:stop])))
            self.num_private -= 1
            self._hold((number, tuple(ids[:stop])))
        return Held(tuple(blocks), tuple(prefixes))

    @rule(target=held, held=held)
    def share(self, held: Held) -> Held:
        shared = tuple(prefix for prefix in held.prefixes if prefix)
        self.pool.pin(held.blocks[: len(shared)])
        for prefix in shared:
            self._hold(prefix)
        return Held(held.blocks[: len(shared)], shared)

    @rule(held=consumes(held))
    def finish(self, held: Held) -> None:
        self.pool.release(held.blocks, make_outcome())
        self._release(held.prefixes)

    @invariant()
    def books_agree(self) -> None:
        if not hasattr(self, "pool"):
            return
        self.pool.check_invariants()
        assert self.pool.num_held == self._num_held()
        assert self.pool.num_used == self._num_held() + len(self.cached)
        self._replay()
        if self.exact_digests:
            resident: dict[bytes, set[bytes]] = {}
            for number, ids in [*self.holders, *self.cached]:
                domain = DOMAINS[number]
                resident.setdefault(domain.tag, set()).add(chain(domain, pack(ids), BLOCK)[-1])
            assert resident == {tag: held for tag, held in self.mirror.items() if held}
            assert resident == {tag: set(_split(packed)) for tag, packed in self.pool.snapshot().items()}

    def _replay(self) -> None:
        for event in self.pool.drain_events():
            held = self.mirror.setdefault(event.domain_tag, set())
            for digest in _split(event.digests):
                if event.change is BlockChange.STORED:
                    held.add(digest)
                else:
                    held.discard(digest)

    def _expected_match(self, number: int, ids: list[int], limit: int) -> int:
        resident = {*self.holders, *self.cached}
        length = 0
        while length + BLOCK <= limit and (number, tuple(ids[: length + BLOCK])) in resident:
            length += BLOCK
        runs = [0]
        for other_number, other in resident:
            if other_number == number and len(other) == length + BLOCK and list(other[:length]) == ids[:length]:
                run = 0
                while run < BLOCK and length + run < limit and other[length + run] == ids[length + run]:
                    run += 1
                runs.append(run)
        return length + max(runs)

    def _check_partial(self, number: int, ids: list[int], blocks: int, source: Block, run: int, limit: int) -> None:
        assert blocks * BLOCK + run <= limit
        assert _ids(source.tokens)[:run] == tuple(ids[blocks * BLOCK : blocks * BLOCK + run])
        assert source.root == DOMAINS[number].root

    def _num_held(self) -> int:
        return len(self.holders) + self.num_private

    def _hold(self, prefix: Prefix) -> None:
        if prefix in self.cached:
            self.cached.remove(prefix)
        self.holders[prefix] = self.holders.get(prefix, 0) + 1

    def _allocate(self, wanted: int) -> None:
        unused = self.capacity - self._num_held() - len(self.cached)
        for _ in range(max(0, wanted - unused)):
            self.cached.pop(0)
        self.num_private += wanted

    def _release(self, prefixes) -> None:
        for prefix in reversed(prefixes):
            if prefix is None:
                self.num_private -= 1
                continue
            self.holders[prefix] -= 1
            if not self.holders[prefix]:
                del self.holders[prefix]
                self.cached.append(prefix)


def _split(packed: bytes) -> list[bytes]:
    return [packed[i : i + 16] for i in range(0, len(packed), 16)]


def _ids(tokens: PackedTokens) -> tuple[int, ...]:
    return tuple(int.from_bytes(tokens[i : i + 4], "little") for i in range(0, len(tokens), 4))


PoolMachine.TestCase.settings = settings(deadline=None, stateful_step_count=40)
TestPool = PoolMachine.TestCase
