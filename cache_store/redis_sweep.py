"""Removes what incarnations left behind: one that leaves, or many that died without leaving.

Nothing is scanned: each incarnation lists its domains, and a set lists the incarnations. An incarnation is proved dead
by its missing lease. One that only paused finds its mark gone, and its next renewal tells it to replace its blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from cache_store.domain import DomainTag
from cache_store.index import Incarnation
from cache_store.redis_keys import (
    CURRENT_KEY,
    INCARNATIONS_KEY,
    blocks_key,
    changes_key,
    domains_key,
    lease_key,
    mark_key,
    parse_current,
)
from cache_store.redis_session import Command, RedisSession

MAX_KEYS_PER_COMMAND = 512
SWEEP_DEADLINE_S = 1.0
"""For each call."""

REMEMBER_WORKERS_S = 24 * 3_600
"""How long after its first renewal a worker that has gone still keeps older incarnations out."""


async def sweep_dead(session: RedisSession, limit: int = 64, deadline_s: float = SWEEP_DEADLINE_S) -> int:
    """Drops dead incarnations among `limit` chosen at random; returns how many. Raises RedisCallError, VersionError.

    Called by a worker when it starts and now and then: each call is bounded, the rest comes with the next.
    """
    await _forget_workers(session, limit, deadline_s)
    found = await session.call(("SRANDMEMBER", INCARNATIONS_KEY, limit), deadline_s)
    incarnations = [Incarnation(name.decode()) for name in _names(found)]
    if not incarnations:
        return 0
    leases = await session.pipeline([("EXISTS", lease_key(name)) for name in incarnations], deadline_s)
    dead = [name for name, lease in zip(incarnations, leases, strict=True) if lease == 0]
    for incarnation in dead:
        await drop_incarnation(session, incarnation, deadline_s)
    return len(dead)


async def drop_incarnation(session: RedisSession, incarnation: Incarnation, deadline_s: float) -> None:
    """Removes all of an incarnation; where this is interrupted, the incarnation stays listed for the next sweep."""
    await unlink_blocks(session, incarnation, (), deadline_s)
    await session.call(("UNLINK", mark_key(incarnation), changes_key(incarnation)), deadline_s)
    await session.pipeline([("SREM", INCARNATIONS_KEY, incarnation), blank_mark(incarnation)], deadline_s)


async def unlink_blocks(
    session: RedisSession, incarnation: Incarnation, more: Iterable[DomainTag], deadline_s: float
) -> None:
    """Removes the blocks of an incarnation in the domains that it lists and in `more`, then the list.

    A command that came too late for its caller may still be executed, after others, and those that were sent together
    not all at once: hence `blank_mark` before and after what removes.
    """
    listed = await session.call(("SMEMBERS", domains_key(incarnation)), deadline_s)
    tags = {*(DomainTag(tag) for tag in _names(listed)), *more}
    for part in _parts(sorted(tags), MAX_KEYS_PER_COMMAND):
        unlink: Command = ("UNLINK", *(blocks_key(tag, incarnation) for tag in part))
        await session.pipeline(blanked(incarnation, [unlink]), deadline_s)
    await session.pipeline(blanked(incarnation, [("UNLINK", domains_key(incarnation))]), deadline_s)


def blanked(incarnation: Incarnation, commands: Sequence[Command]) -> list[Command]:
    """Commands of which some may be executed after the incarnation has written its mark: it finds it blank then."""
    return [blank_mark(incarnation), *commands, blank_mark(incarnation)]


def blank_mark(incarnation: Incarnation) -> Command:
    """An incarnation that finds its mark blank replaces its blocks once more."""
    return ("SET", mark_key(incarnation), 0, "XX")


async def _forget_workers(session: RedisSession, limit: int, deadline_s: float) -> None:
    """Forgets which incarnation of a worker was its newest, long after its lease has ended.

    An older one that comes back later than that finds the place free. A worker that starts at the same moment is put
    back by its next renewal.
    """
    seconds = _names(await session.call(("TIME",), deadline_s))[0]
    oldest_us = (int(seconds) - REMEMBER_WORKERS_S) * 1_000_000
    fields = _names(await session.call(("HRANDFIELD", CURRENT_KEY, limit, "WITHVALUES"), deadline_s))
    entries = [(worker, parse_current(entry)) for worker, entry in zip(fields[::2], fields[1::2], strict=True)]
    aged = [(worker, entry[1]) for worker, entry in entries if entry is not None and entry[0] < oldest_us]
    if not aged:
        return
    leases = await session.pipeline([("EXISTS", lease_key(name)) for _, name in aged], deadline_s)
    gone = [worker for (worker, _), lease in zip(aged, leases, strict=True) if lease == 0]
    if gone:
        await session.call(("HDEL", CURRENT_KEY, *gone), deadline_s)


def _names(reply: object) -> list[bytes]:
    return [name for name in reply if isinstance(name, bytes)] if isinstance(reply, list) else []


def _parts(items: Sequence[DomainTag], size: int) -> Iterator[Sequence[DomainTag]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
