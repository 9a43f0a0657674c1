"""The registry of workers in Redis: a record under a lease per incarnation, and the newest incarnation of each worker.

The lease is a key that expires; the hash of newest incarnations stays, so that an older one is still refused after its
successor has ended. The order of incarnations comes from the server's clock at their first renewal: it needs no counter
that a restart without data could set back. Reading takes two calls and no scan.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from cache_store.index import Incarnation
from cache_store.redis_keys import CURRENT_KEY, lease_key, parse_current
from cache_store.redis_scripts import ScriptKind, load_script
from cache_store.redis_session import CLAIM_SCHEMA, REDIS_ERRORS, Argument, RedisSession, Reply
from cache_store.registry import (
    LEASE_S,
    RegistryUnavailableError,
    Renewal,
    SupersededError,
    WorkerId,
    WorkerRecord,
)
from cache_store.registry_record import read_record, write_record

CALL_DEADLINE_S = 0.5


class RedisRegistryReader:
    """RegistryReader over a session."""

    def __init__(self, session: RedisSession, deadline_s: float = CALL_DEADLINE_S) -> None:
        self._session = session
        self._deadline_s = deadline_s

    async def workers(self) -> list[WorkerRecord]:
        """See RegistryReader."""
        with _as_unavailable():
            newest = _newest(await self._session.call(("HGETALL", CURRENT_KEY), self._deadline_s))
            if not newest:
                return []
            leases = [lease_key(incarnation) for incarnation in newest.values()]
            records = await self._session.call(("MGET", *leases), self._deadline_s)
        return [
            read_record(worker_id, incarnation, data)
            for (worker_id, incarnation), data in zip(newest.items(), _items(records), strict=True)
            if isinstance(data, bytes)
        ]


class RedisRegistryWriter:
    """RegistryWriter over a session. Remembers the order that each of its incarnations got."""

    def __init__(self, session: RedisSession, lease_s: float = LEASE_S, deadline_s: float = CALL_DEADLINE_S) -> None:
        self._session = session
        self._lease_ms = round(lease_s * 1000)
        self._deadline_s = deadline_s
        self._script = load_script("renew", ScriptKind.WRITES)
        self._orders: dict[Incarnation, bytes] = {}

    async def renew(self, record: WorkerRecord) -> Renewal:
        """See RegistryWriter."""
        keys = [CURRENT_KEY, lease_key(record.incarnation)]
        arguments: list[Argument] = [
            record.worker_id,
            record.incarnation,
            self._orders.get(record.incarnation, b""),
            write_record(record),
            self._lease_ms,
        ]
        with _as_unavailable():
            state, order = _state_and_order(
                await self._session.run_script(self._script, keys, arguments, self._deadline_s)
            )
            self._orders[record.incarnation] = order
            if state == "new":
                await self._session.call(CLAIM_SCHEMA, self._deadline_s)
        if state == "superseded":
            raise SupersededError(f"worker {record.worker_id} has a newer incarnation than {record.incarnation}")
        return Renewal(state)

    async def leave(self, worker_id: WorkerId, incarnation: Incarnation) -> None:
        """See RegistryWriter. A lease is its incarnation's own, so it never ends a successor's."""
        del worker_id
        with _as_unavailable():
            await self._session.call(("DEL", lease_key(incarnation)), self._deadline_s)


def _newest(reply: Reply) -> dict[WorkerId, Incarnation]:
    """Newest incarnation by worker id, in the order of the ids; entries in another form are left out."""
    fields = [item for item in _items(reply) if isinstance(item, bytes)]
    found = {}
    for worker_id, entry in zip(fields[::2], fields[1::2], strict=True):
        current = parse_current(entry)
        if current is not None:
            found[WorkerId(worker_id.decode("utf-8", "replace"))] = current[1]
    return dict(sorted(found.items()))


def _state_and_order(reply: Reply) -> tuple[str, bytes]:
    match reply:
        case [bytes(state), bytes(order)]:
            return state.decode(), order
    raise RegistryUnavailableError("the renewal script answers in another form than this build expects")


def _items(reply: Reply) -> list[Reply]:
    return reply if isinstance(reply, list) else []


@contextmanager
def _as_unavailable() -> Iterator[None]:
    try:
        yield
    except REDIS_ERRORS as error:
        raise RegistryUnavailableError(str(error)) from error
