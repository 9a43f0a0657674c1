"""Which worker takes which prefix of one that leaves. Pure.

Prefixes that begin alike go to the same worker, as far as that does not give it much more than the others; hot ones are
placed first. A strict tenant's go to all: where its requests will go follows from what they ask for, which only routers
know. What a worker does not serve, or has refused, is not offered to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cache_store.domain import TenantId
from cache_store.hot_prefixes import HotPrefix, Line

NEW_WEIGHT = 4
"""A block that a worker has to take anew counts as much as so many that it was given before."""


class _Takings:
    """What one worker is given."""

    def __init__(self, above: dict[Line, Line | None], wants: Callable[[HotPrefix], bool]) -> None:
        self._above = above
        self.wants = wants
        self._held: set[Line] = set()
        """Ends and forks: whoever is given one is given all before it, so nothing between two of them is half held."""
        self.num_blocks = 0
        self.prefixes: list[HotPrefix] = []

    def num_new(self, prefix: HotPrefix) -> int:
        """Its blocks that were not given before."""
        line: Line | None = prefix.line
        while line is not None and line not in self._held:
            line = self._above[line]
        return prefix.num_blocks - (0 if line is None else line.num_blocks)

    def cost(self, prefix: HotPrefix) -> int:
        """Of giving it to this one; least is best."""
        return self.num_blocks + NEW_WEIGHT * self.num_new(prefix)

    def give(self, prefix: HotPrefix) -> None:
        self.prefixes.append(prefix)
        self.num_blocks += self.num_new(prefix)
        line: Line | None = prefix.line
        while line is not None and line not in self._held:
            self._held.add(line)
            line = self._above[line]


def shares(
    prefixes: Sequence[HotPrefix],
    wants: Sequence[Callable[[HotPrefix], bool]],
    is_strict: Callable[[TenantId], bool],
) -> list[list[HotPrefix]]:
    """The prefixes for each worker, in the order of `prefixes`. `wants`: what may be offered to each."""
    above = _above([prefix.line for prefix in prefixes])
    workers = [_Takings(above, each) for each in wants]
    for prefix in prefixes:
        takers = [worker for worker in workers if worker.wants(prefix)]
        if not is_strict(prefix.domain.tenant):
            takers = sorted(takers, key=lambda each: each.cost(prefix))[:1]
        for worker in takers:
            worker.give(prefix)
    return [worker.prefixes for worker in workers]


def _above(ends: Sequence[Line]) -> dict[Line, Line | None]:
    """For each end, and each block where lines part: the next such block before it."""
    marked, passed = set(ends), set[Line]()
    for end in ends:
        line: Line | None = end
        while line is not None and line not in passed:
            passed.add(line)
            line = line.parent
        if line is not None:
            marked.add(line)
    above: dict[Line, Line | None] = {}
    for mark in marked:
        line = mark.parent
        while line is not None and line not in marked:
            line = line.parent
        above[mark] = line
    return above
