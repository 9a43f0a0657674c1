"""Index lookups out of a copy in this process, kept current from the streams of changes in Redis.

Every incarnation is *followed*: several times a second what is new in its stream is applied (`poll`). A domain is
loaded when it is first asked for; until then, and wherever the copy may be wrong, the script answers
(`RedisIndexReader`). It may be wrong where the last poll is too long ago, where entries are missing (a reader that was
slow, a store that lost data), and for writers that keep no stream. After any doubt about an incarnation all that is
known of it is forgotten and loaded anew. Where the store is away, what was known is told with the error.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import structlog

from cache_store.clock import Clock
from cache_store.departures import Departures
from cache_store.domain import DomainTag
from cache_store.errors import CorruptDataError
from cache_store.events import BlockChange
from cache_store.index import Incarnation, IndexReader, IndexUnavailableError
from cache_store.index_replica import IndexReplica, each
from cache_store.index_stream import StreamedChange, unpack_events
from cache_store.redis_index import EVENTS_FIELD, FROM_FIELD, MARK_FIELD
from cache_store.redis_keys import blocks_key, changes_key, mark_key
from cache_store.redis_session import REDIS_ERRORS, Command, RedisCallError, RedisSession, Reply

POLL_S = 0.1
FRESH_S = 1.0
"""Age of the last poll up to which the copy answers alone."""

AWAY_AFTER_S = 2.0
"""Age of the last poll beyond which the store counts as out of reach."""

POLL_DEADLINE_S = 0.5
LOAD_DEADLINE_S = 1.0
MAX_ENTRIES_PER_POLL = 256
LOAD_PORTION = 5_000
"""Digests that are asked for at once: about a millisecond of the server."""

MAX_LOADS = 4
"""At once."""

MAX_WAITING_LOADS = 256
"""More are dropped; the next lookup asks again."""

_START = b"0-0"
_NO_MARK = b"0"
"""Before the first entry of a writer."""

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Follower:
    """How far the stream of one incarnation was read."""

    last_id: bytes = _START
    mark: bytes | None = None
    """Of the last entry read; None before the first."""
    is_placed: bool = False
    """Whether `last_id` was found out."""
    is_behind: bool = False
    """The writer's mark was ahead of the stream at the last poll: written between two reads, or never streamed."""
    polled_s: float = -math.inf
    """When everything that there was had been read."""

    def is_current(self, now_s: float) -> bool:
        """Whether what is known of the incarnation may be used."""
        return now_s - self.polled_s <= FRESH_S


@dataclass(frozen=True, slots=True)
class ReplicaStats:
    """What the copy is, for the operator."""

    num_domains: int
    num_digests: int
    num_followed: int
    """Incarnations whose stream is read to its end."""
    num_known: int
    """Incarnations that live, as far as is known."""
    num_resyncs: int
    """Times that an incarnation was forgotten and loaded anew."""
    num_copy_lookups: int
    """That the copy answered alone."""
    num_script_lookups: int
    """For which the script was asked, and answered."""
    num_failed_lookups: int
    """For which it did not answer."""
    is_reachable: bool
    """Whether the store answered a poll lately."""
    lag_s: float = 0.0
    """Since the stream that is read least far was read to its end; of one that never was, since the last answer."""


class ReplicaIndexReader:
    """IndexReader of one router; owned by its event loop. `run` has to be awaited for it to be more than the script."""

    def __init__(
        self,
        session: RedisSession,
        script: IndexReader,
        incarnations: Callable[[], Collection[Incarnation]],
        clock: Clock,
        departures: Departures,
        replica: IndexReplica | None = None,
    ) -> None:
        """`incarnations`: those that live. `departures` is told what leaves domains that are in the copy."""
        self._session = session
        self._script = script
        self._incarnations = incarnations
        self._clock = clock
        self._departures = departures
        self.replica = IndexReplica() if replica is None else replica
        """Only to be looked at."""
        self._followers: dict[Incarnation, _Follower] = {}
        self._loads: dict[tuple[DomainTag, Incarnation], None] = {}
        """That wait, in order."""
        self._wake = asyncio.Event()
        self._num_resyncs = self._num_copy = self._num_script = self._num_failed = 0
        self._answered_s = clock.monotonic_s()

    @property
    def stats(self) -> ReplicaStats:
        """Now."""
        now_s = self._clock.monotonic_s()
        return ReplicaStats(
            num_domains=self.replica.num_domains,
            num_digests=self.replica.num_digests,
            num_followed=sum(map(self._is_current, self._followers)),
            num_known=len(self._followers),
            num_resyncs=self._num_resyncs,
            num_copy_lookups=self._num_copy,
            num_script_lookups=self._num_script,
            num_failed_lookups=self._num_failed,
            is_reachable=now_s - self._answered_s <= AWAY_AFTER_S,
            lag_s=max(now_s - self._answered_s, self._lag_s(now_s)),
        )

    def _lag_s(self, now_s: float) -> float:
        read = [each.polled_s for each in self._followers.values() if each.polled_s > -math.inf]
        return now_s - min(read, default=now_s)

    async def lookup(
        self, domain_tag: DomainTag, digests: bytes, incarnations: Sequence[Incarnation]
    ) -> Mapping[Incarnation, int]:
        """See IndexReader. An error tells what the copy knows."""
        if not digests:
            return dict.fromkeys(incarnations, 0)
        known = self.replica.counts(domain_tag, digests, incarnations)
        now_s, followers = self._clock.monotonic_s(), self._followers
        oldest_s = now_s - FRESH_S
        doubtful = [each for each in incarnations if each not in known or followers[each].polled_s < oldest_s]
        if not doubtful:
            self._num_copy += 1
            return known
        self._load_soon(domain_tag, doubtful)
        try:
            found = await self._script.lookup(domain_tag, digests, doubtful)
        except IndexUnavailableError as error:
            self._num_failed += 1
            raise IndexUnavailableError(str(error), known) from error
        self._num_script += 1
        return {**known, **found}

    async def run(self) -> None:
        """Follows and loads until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._keep_polling())
            for _ in range(MAX_LOADS):
                tasks.create_task(self._keep_loading())

    async def poll(self) -> None:
        """Applies what is new of all live incarnations. A store that does not answer leaves the copy as it is."""
        live = dict.fromkeys(self._incarnations())
        for gone in self._followers.keys() - live.keys():
            del self._followers[gone]
            self.replica.forget(gone)
        for incarnation in live:
            self._followers.setdefault(incarnation, _Follower())
        behind = list(self._followers)
        while behind:
            try:
                behind = await self._read(behind)
            except REDIS_ERRORS:
                return  # lookups notice by the age of the last poll
        self._answered_s = self._clock.monotonic_s()

    async def load(self, domain_tag: DomainTag, incarnation: Incarnation) -> None:
        """Reads what an incarnation holds of a domain. Where it cannot be read the script goes on answering."""
        begun = self.replica.begin_load(domain_tag, incarnation) if self._is_current(incarnation) else None
        if begun is None:
            return
        try:
            digests = await self._members(blocks_key(domain_tag, incarnation), self.replica.max_domain_digests)
            if digests is None:
                self.replica.refuse_load(begun)
            else:
                self.replica.finish_load(begun, digests)
        except REDIS_ERRORS as error:
            _log.info("index_load_failed", reason=str(error))
        finally:
            self.replica.abandon_load(begun)

    async def _members(self, key: str, num_most: int) -> list[bytes] | None:
        """Of a set that changes meanwhile: whoever is in it all the time, and of the others some.

        None where there are more than `num_most`.
        """
        members: list[bytes] = []
        cursor = b"0"
        while True:
            match await self._session.call(("SSCAN", key, cursor, "COUNT", LOAD_PORTION), LOAD_DEADLINE_S):
                case [bytes(cursor), [*found]]:
                    members += _texts(found)
                    if len(members) > num_most:
                        return None
                case other:
                    raise RedisCallError(f"SSCAN answers {type(other).__name__}")
            if cursor == b"0":
                return members

    async def _keep_polling(self) -> None:
        while True:
            await self.poll()
            await asyncio.sleep(POLL_S)

    async def _keep_loading(self) -> None:
        while True:
            while self._loads:
                wanted = next(iter(self._loads))
                del self._loads[wanted]
                await self.load(*wanted)
            self._wake.clear()
            await self._wake.wait()

    def _load_soon(self, domain_tag: DomainTag, incarnations: Iterable[Incarnation]) -> None:
        for incarnation in incarnations:
            if self._is_current(incarnation) and len(self._loads) < MAX_WAITING_LOADS:
                self._loads[domain_tag, incarnation] = None
                self._wake.set()

    def _is_current(self, incarnation: Incarnation) -> bool:
        follower = self._followers.get(incarnation)
        return follower is not None and follower.is_current(self._clock.monotonic_s())

    async def _read(self, incarnations: Sequence[Incarnation]) -> list[Incarnation]:
        """Reads one portion of each stream; returns those of which there is more."""
        commands: list[Command] = []
        for incarnation in incarnations:
            follower = self._followers[incarnation]
            key = changes_key(incarnation)
            if follower.is_placed:
                commands.append(("XRANGE", key, b"(" + follower.last_id, "+", "COUNT", MAX_ENTRIES_PER_POLL))
            else:
                commands.append(("XREVRANGE", key, "+", "-", "COUNT", 1))
            commands.append(("GET", mark_key(incarnation)))
        started_s = self._clock.monotonic_s()
        replies = await self._session.pipeline(commands, POLL_DEADLINE_S)
        more: list[Incarnation] = []
        for incarnation, reply, mark in zip(incarnations, replies[::2], replies[1::2], strict=True):
            try:
                entries = _entries(reply)
                if not self._take(incarnation, entries, mark, started_s):
                    self._start_anew(incarnation)
                elif len(entries) == MAX_ENTRIES_PER_POLL:
                    more.append(incarnation)
            except CorruptDataError as error:
                _log.warning("index_stream_unreadable", reason=str(error))
                self._start_anew(incarnation)
        return more

    def _take(self, incarnation: Incarnation, entries: Sequence[_Entry], mark: Reply, started_s: float) -> bool:
        """Applies entries; False where some are missing."""
        follower = self._followers[incarnation]
        if not follower.is_placed:
            follower.is_placed = True
            if entries:
                follower.last_id, follower.mark = entries[-1].id, entries[-1].mark
        else:
            for entry in entries:
                if not entry.before:  # everything was replaced
                    self.replica.forget(incarnation)
                elif entry.before != (follower.mark or _NO_MARK):
                    return False
                self._apply(incarnation, unpack_events(entry.events))
                follower.last_id, follower.mark = entry.id, entry.mark
            if len(entries) == MAX_ENTRIES_PER_POLL:
                return True
        if mark == follower.mark:
            follower.is_behind = False
            follower.polled_s = started_s
            return True
        was_behind, follower.is_behind = follower.is_behind, True
        return not was_behind or bool(entries)

    def _apply(self, incarnation: Incarnation, changes: Sequence[StreamedChange]) -> None:
        self.replica.apply(incarnation, changes)
        for change in changes:
            if change.change is BlockChange.REMOVED and self.replica.knows(change.domain_tag, incarnation):
                self._departures.note(change.domain_tag, each(change.digests))

    def _start_anew(self, incarnation: Incarnation) -> None:
        if self._followers[incarnation].polled_s > -math.inf:
            self._num_resyncs += 1
        self._followers[incarnation] = _Follower()
        self.replica.forget(incarnation)


@dataclass(frozen=True, slots=True)
class _Entry:
    id: bytes
    before: bytes = b""
    mark: bytes = b""
    events: bytes = field(default=b"", repr=False)


def _entries(reply: Reply) -> list[_Entry]:
    """Raises CorruptDataError for what is no stream of changes."""
    made: list[_Entry] = []
    for item in reply if isinstance(reply, list) else []:
        match item:
            case [bytes(entry_id), [*fields]]:
                named = dict(zip(_texts(fields[::2]), _texts(fields[1::2]), strict=True))
                made.append(
                    _Entry(
                        entry_id, named.get(FROM_FIELD, b""), named.get(MARK_FIELD, b""), named.get(EVENTS_FIELD, b"")
                    )
                )
            case _:
                raise CorruptDataError("an entry of the index's stream has no fields")
    return made


def _texts(reply: Reply | Sequence[Reply]) -> list[bytes]:
    return [text for text in reply if isinstance(text, bytes)] if isinstance(reply, list) else []
