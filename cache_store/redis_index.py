"""The index in Redis: one SET of digests per domain and worker incarnation.

Reading is one script call. Writing is SADD, SREM and UNLINK in pipelines of bounded size, without reading first. Before
the writes of a batch the writer replaces its mark; where the old mark is not the one that it left, the store has lost
writes (it restarted empty, or from an old copy), and the writer asks to be replaced. So it does after every failure,
since nobody knows then which part of a batch was written. The rest of such a batch may still be executed, after it was
replaced: each ends with its mark as well, which the writer finds then.

After the writes of a batch the writer appends them to its stream of changes, with their mark, for readers that keep a
copy (`cache_store/redis_replica.py`): marks follow one another, so that a reader sees what it has missed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby

from cache_store.digest import DIGEST_BYTES
from cache_store.domain import DomainTag
from cache_store.events import BlockChange, BlockEvent
from cache_store.index import Incarnation, IndexUnavailableError
from cache_store.index_sequence import EventSequence, SequenceGapError
from cache_store.index_stream import pack_events
from cache_store.redis_keys import INCARNATIONS_KEY, blocks_key, changes_key, domains_key, mark_key
from cache_store.redis_scripts import ScriptKind, load_script
from cache_store.redis_session import CLAIM_SCHEMA, REDIS_ERRORS, Command, RedisSession, Reply
from cache_store.redis_sweep import blanked, drop_incarnation, unlink_blocks

LOOKUP_DEADLINE_S = 0.05
WRITE_DEADLINE_S = 1.0
"""For each pipeline."""

MAX_DIGESTS_PER_COMMAND = 1_024
MAX_COMMANDS_PER_PIPELINE = 16

MAX_STREAM_ENTRIES = 1_000
"""Batches that a reader may be behind, about; beyond it the reader begins anew."""

FROM_FIELD, MARK_FIELD, EVENTS_FIELD = b"from", b"mark", b"events"
"""Of an entry of the stream: the mark before it, the mark after it, what was written in between. `from` is empty where
all blocks of the incarnation were replaced.
"""


class RedisIndexReader:
    """IndexReader over a session."""

    def __init__(self, session: RedisSession, deadline_s: float = LOOKUP_DEADLINE_S) -> None:
        self._session = session
        self._deadline_s = deadline_s
        self._script = load_script("lookup", ScriptKind.READS)

    async def lookup(
        self, domain_tag: DomainTag, digests: bytes, incarnations: Sequence[Incarnation]
    ) -> Mapping[Incarnation, int]:
        """See IndexReader."""
        assert len(digests) % DIGEST_BYTES == 0, "digests have 16 bytes each"
        if not digests or not incarnations:
            return dict.fromkeys(incarnations, 0)
        keys = [blocks_key(domain_tag, incarnation) for incarnation in incarnations]
        with _as_unavailable():
            counts = await self._session.run_script(self._script, keys, [digests], self._deadline_s)
        return dict(zip(incarnations, _numbers(counts, len(incarnations)), strict=True))


@dataclass(slots=True)
class _Writing:
    """What the writer knows of one incarnation."""

    sequence: EventSequence = field(default_factory=EventSequence)
    mark: int = 0
    """The last one written; 0 before the first."""
    in_doubt: bool = False
    """The last write may have been done in part."""


class RedisIndexWriter:
    """IndexWriter over a session. Calls for one incarnation must not overlap."""

    def __init__(self, session: RedisSession, deadline_s: float = WRITE_DEADLINE_S) -> None:
        self._session = session
        self._deadline_s = deadline_s
        self._writings: dict[Incarnation, _Writing] = {}

    async def apply(self, incarnation: Incarnation, events: Sequence[BlockEvent]) -> None:
        """See IndexWriter. Without events it still finds out whether the store has lost writes."""
        writing = self._writings.setdefault(incarnation, _Writing())
        if writing.in_doubt:
            raise IndexUnavailableError("the last write may have been done in part; replace the incarnation's blocks")
        with _doubting(writing):
            admitted = writing.sequence.admit(events)
            commands = [] if writing.mark else _introduction(incarnation)
            batches = _batches([*commands, *_changes(incarnation, admitted)]) or [[]]
            entry = _entry(incarnation, str(writing.mark), writing.mark + len(batches), pack_events(admitted))
            for batch in (*batches[:-1], [*batches[-1], entry]):
                await self._write_marked(incarnation, writing, batch)
            await self._prune_domains(incarnation, writing, {event.domain_tag for event in admitted if _removes(event)})

    async def replace(self, incarnation: Incarnation, blocks: Mapping[DomainTag, bytes]) -> None:
        """See IndexWriter."""
        writing = self._writings.setdefault(incarnation, _Writing())
        with _doubting(writing):
            await unlink_blocks(self._session, incarnation, blocks, self._deadline_s)
            commands = _introduction(incarnation)
            for domain_tag, digests in blocks.items():
                commands += _stores(incarnation, domain_tag, digests)
            for batch in _batches(commands):
                await self._session.pipeline(blanked(incarnation, batch), self._deadline_s)
            writing.mark += 1
            mark: Command = ("SET", mark_key(incarnation), writing.mark)
            await self._session.pipeline([mark, _entry(incarnation, "", writing.mark, b"")], self._deadline_s)
            writing.sequence.restart()

    async def drop(self, incarnation: Incarnation) -> None:
        """See IndexWriter."""
        self._writings.pop(incarnation, None)
        with _as_unavailable():
            await drop_incarnation(self._session, incarnation, self._deadline_s)

    async def _write_marked(self, incarnation: Incarnation, writing: _Writing, batch: Sequence[Command]) -> None:
        expected = str(writing.mark).encode() if writing.mark else None
        writing.mark += 1
        mark: Command = ("SET", mark_key(incarnation), writing.mark)
        found, *_ = await self._session.pipeline([(*mark, "GET"), *batch, mark], self._deadline_s)
        if found != expected:
            raise IndexUnavailableError("the store has lost writes; replace the incarnation's blocks")

    async def _prune_domains(self, incarnation: Incarnation, writing: _Writing, domain_tags: set[DomainTag]) -> None:
        """Forgets domains of which nothing is left. Nobody else writes them, so nothing comes in between."""
        tags = sorted(domain_tags)
        checks: list[Command] = [("EXISTS", blocks_key(tag, incarnation)) for tag in tags]
        left: list[Reply] = []
        for batch in _batches(checks):
            left += await self._session.pipeline(batch, self._deadline_s)
        empty = [tag for tag, exists in zip(tags, left, strict=True) if exists == 0]
        if empty:
            forget: Command = ("SREM", domains_key(incarnation), *empty)
            entry = _entry(incarnation, str(writing.mark), writing.mark + 1, b"")
            await self._write_marked(incarnation, writing, [forget, entry])


def _introduction(incarnation: Incarnation) -> list[Command]:
    """What an incarnation writes before its first blocks."""
    return [CLAIM_SCHEMA, ("SADD", INCARNATIONS_KEY, incarnation)]


def _entry(incarnation: Incarnation, before: str, mark: int, events: bytes) -> Command:
    """Appends to the stream of changes."""
    limit = ("MAXLEN", "~", MAX_STREAM_ENTRIES)
    fields = (FROM_FIELD, before, MARK_FIELD, mark, EVENTS_FIELD, events)
    return ("XADD", changes_key(incarnation), *limit, "*", *fields)


def _changes(incarnation: Incarnation, events: Sequence[BlockEvent]) -> list[Command]:
    """Commands of events in their order; neighbours of one kind in one domain become one."""
    commands: list[Command] = []
    for (domain_tag, change), run in groupby(events, key=lambda event: (event.domain_tag, event.change)):
        digests = b"".join(event.digests for event in run)
        key = blocks_key(domain_tag, incarnation)
        if change is BlockChange.STORED:
            commands += _stores(incarnation, domain_tag, digests)
        elif change is BlockChange.CLEARED:
            commands.append(("UNLINK", key))
        else:
            commands += [("SREM", key, *part) for part in _split(digests)]
    return commands


def _stores(incarnation: Incarnation, domain_tag: DomainTag, digests: bytes) -> list[Command]:
    if not digests:
        return []
    key = blocks_key(domain_tag, incarnation)
    commands: list[Command] = [("SADD", domains_key(incarnation), domain_tag)]
    commands += [("SADD", key, *part) for part in _split(digests)]
    return commands


def _split(digests: bytes) -> Iterator[list[bytes]]:
    """Digests of one command each, in order."""
    width = MAX_DIGESTS_PER_COMMAND * DIGEST_BYTES
    for start in range(0, len(digests), width):
        part = digests[start : start + width]
        yield [part[at : at + DIGEST_BYTES] for at in range(0, len(part), DIGEST_BYTES)]


def _batches(commands: Sequence[Command]) -> list[Sequence[Command]]:
    return [
        commands[start : start + MAX_COMMANDS_PER_PIPELINE]
        for start in range(0, len(commands), MAX_COMMANDS_PER_PIPELINE)
    ]


def _removes(event: BlockEvent) -> bool:
    return event.change is not BlockChange.STORED


def _numbers(reply: Reply, num_expected: int) -> list[int]:
    numbers = [number for number in reply if isinstance(number, int)] if isinstance(reply, list) else []
    if len(numbers) != num_expected:
        raise IndexUnavailableError("the lookup script answers in another form than this build expects")
    return numbers


@contextmanager
def _as_unavailable() -> Iterator[None]:
    try:
        yield
    except REDIS_ERRORS as error:
        raise IndexUnavailableError(str(error)) from error


@contextmanager
def _doubting(writing: _Writing) -> Iterator[None]:
    """In doubt until the block ends without an error; cancellation counts as one."""
    writing.in_doubt = True
    try:
        with _as_unavailable():
            yield
    except SequenceGapError as error:
        raise IndexUnavailableError(f"{error}; replace the incarnation's blocks") from error
    writing.in_doubt = False
