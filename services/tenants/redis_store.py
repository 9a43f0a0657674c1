"""The control data in Redis: one hash, read whole, written by compare-and-set.

The hash `sc:control` holds the field `head` and one field per record. A write reads everything, computes the new table
as a pure function of the old, and commits the difference by one script that takes it only where the head is still the
one that was read; else it begins again. Owns a lock, which keeps the writers of one process from contending, and the
records last read, so that unchanged ones are not opened again. Every call has a deadline. The client is one of Redis
role `operator`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from cache_store.clock import Clock
from cache_store.domain import TenantId
from cache_store.errors import (
    AlreadyExistsError,
    CorruptDataError,
    InvalidRequestError,
    PreconditionError,
    UnavailableError,
)
from cache_store.quota import check_sum, guaranteed
from cache_store.tier_kind import TierKind
from services.tenants.adapter import LoadedAdapter, with_loaded, with_unloaded
from services.tenants.api_key import NewApiKey, new_api_key
from services.tenants.document import DocumentKind, Sealer, read_document, write_document
from services.tenants.fields import parse_object, to_json
from services.tenants.master_key import MasterKey
from services.tenants.model import KeyId, Tenant, new_epoch, new_tenant
from services.tenants.purge import PurgeScope, new_purge
from services.tenants.quota_change import NO_CHANGE, QuotaChange, with_terms
from services.tenants.records import Entry, entries, seal, table_from, unseal
from services.tenants.state import EMPTY_STATE, ControlState, next_head, parse_head, require_master
from services.tenants.table import (
    ControlTable,
    add_key,
    add_tenant,
    delete_tenant,
    join,
    name_conflicts,
    purge_tenant,
    revoke_key,
    rotate_epoch,
    set_quota,
)

CONTROL_KEY = "sc:control"
CALL_DEADLINE_S = 2.0
WRITE_DEADLINE_S = 10.0
"""For a write with all its repetitions."""
_HEAD = "head"
_WHAT = f"the control data in Redis ({CONTROL_KEY})"

_COMMIT = """
if (redis.call('HGET', KEYS[1], 'head') or '') ~= ARGV[1] then
  return 0
end
local num_removed = tonumber(ARGV[2])
for i = 3, 2 + num_removed do
  redis.call('HDEL', KEYS[1], ARGV[i])
end
for i = 3 + num_removed, #ARGV, 2 do
  redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1])
end
return 1
"""

T = TypeVar("T")
Edit = Callable[[ControlTable], ControlTable]


@dataclass(frozen=True, slots=True)
class Committed(Generic[T]):
    """What a write made, and all data after it."""

    value: T
    state: ControlState


@dataclass(frozen=True, slots=True)
class Change:
    """What a write found and what it left; one and the same object where there was nothing to write."""

    before: ControlState
    after: ControlState


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import added or changed."""

    num_tenants: int
    num_keys: int


class ControlStore:
    """Reads and writes the control data.

    Every method raises UnavailableError where Redis is away (after a write that was cut off, read before trying again:
    it may have come through), and PreconditionError where Redis refuses.
    """

    def __init__(self, redis: Redis, master: MasterKey, clock: Clock) -> None:
        self._redis = redis
        self._master = master
        self._clock = clock
        self._writing = asyncio.Lock()
        self._parsed: dict[str, tuple[str, Entry]] = {}

    async def read_head_text(self) -> str:
        """The head as stored, "" for an empty store: equal texts mean equal data."""
        found = await self._call(self._redis.hget(CONTROL_KEY, _HEAD))
        return "" if found is None else _text(found)

    async def read(self) -> ControlState:
        """Everything. Raises VersionError, PreconditionError (another master key), CorruptDataError."""
        raw = await self._call(self._redis.hgetall(CONTROL_KEY))
        return self._parse({_text(name): _text(value) for name, value in raw.items()})

    async def create_tenant(self, name: str, terms: QuotaChange = NO_CHANGE) -> Committed[Tenant]:
        """A tenant with the usual quota, changed by `terms`.

        Raises InvalidRequestError for a bad name or quota, AlreadyExistsError for a taken name, PreconditionError for a
        guarantee beyond what is free.
        """
        tenant = with_terms(new_tenant(name, self._clock.unix_s()), terms)
        change = await self._change(lambda table: add_tenant(table, tenant))
        return Committed(tenant, change.after)

    async def delete_tenant(self, name: str) -> Committed[TenantId]:
        """Ends a tenant and its keys; which one it was. Raises NotFoundError."""
        change = await self._change(lambda table: delete_tenant(table, name))
        return Committed(change.before.table.tenant_by_name(name).id, change.after)

    async def create_key(self, tenant_name: str) -> Committed[NewApiKey]:
        """Raises NotFoundError, PreconditionError where the tenant has two live keys."""
        made: list[NewApiKey] = []

        def edit(table: ControlTable) -> ControlTable:
            made[:] = [new_api_key(table.tenant_by_name(tenant_name).id, self._clock.unix_s())]
            return add_key(table, made[0].key)

        change = await self._change(edit)
        return Committed(made[0], change.after)

    async def revoke_key(self, key_id: KeyId) -> Committed[None]:
        """Idempotent. Raises NotFoundError for an id that was never given out."""
        return Committed(None, (await self._change(lambda table: revoke_key(table, key_id))).after)

    async def rotate_epoch(self, tenant_name: str) -> Committed[Tenant]:
        """Gives a tenant a fresh epoch. Raises NotFoundError."""
        epoch, now_s = new_epoch(), self._clock.unix_s()
        after = (await self._change(lambda table: rotate_epoch(table, tenant_name, epoch, now_s))).after
        return Committed(after.table.tenant_by_name(tenant_name), after)

    async def purge(self, tenant: TenantId, scope: PurgeScope) -> Committed[Tenant]:
        """Makes unreachable what a tenant has in `scope`. Raises NotFoundError."""
        change = new_purge(scope, self._clock.unix_s())
        after = (await self._change(lambda table: purge_tenant(table, tenant, change))).after
        return Committed(after.table.tenants[tenant], after)

    async def set_quota(self, tenant_name: str, change: QuotaChange) -> Committed[Tenant]:
        """Changes quota and limits of a tenant, against all others at the moment of the write.

        Raises NotFoundError, InvalidRequestError, PreconditionError for a guarantee beyond what is free.
        """
        now_s = self._clock.unix_s()
        after = (await self._change(lambda table: set_quota(table, tenant_name, change, now_s))).after
        return Committed(after.table.tenant_by_name(tenant_name), after)

    async def load_adapter(self, adapter: LoadedAdapter) -> Change:
        """Puts an adapter in place of another one of its name. Raises PreconditionError where there are too many."""
        adapter = replace(adapter, change_unix_s=self._clock.unix_s())
        return await self._change(lambda table: replace(table, adapters=with_loaded(table.adapters, adapter)))

    async def unload_adapter(self, name: str) -> Change:
        """Takes an adapter away. Raises NotFoundError."""
        now_s = self._clock.unix_s()
        return await self._change(lambda table: replace(table, adapters=with_unloaded(table.adapters, name, now_s)))

    async def restore(self, known: ControlState) -> Change:
        """What was stored, and what is after everything in `known` that it lacked was put back.

        Where the store lacks nothing this only reads. Else, one write above both generations: of several routers that
        restore at once one wins, and the others join what they know into its result.
        """
        return await self._change(lambda table: join(table, known.table), floor=known.generation)

    async def export_document(self) -> bytes:
        """Everything as one document, secrets wrapped by the master key."""
        return write_document(DocumentKind.EXPORT, await self.read(), Sealer(self._master))

    async def import_document(self, document: bytes) -> Committed[Imported]:
        """Joins a document into the store: what was deleted, revoked or rotated here since stays so.

        Refuses with PreconditionError (another master key, guarantees that do not fit), VersionError,
        InvalidRequestError (wrong MAC, damage) or AlreadyExistsError (a name that another tenant has). Changes nothing
        then.
        """
        try:
            given = read_document(DocumentKind.EXPORT, document, self._master, "the document").table
        except CorruptDataError as error:
            raise InvalidRequestError("document", f"{error}; give it as it was exported") from error
        counts: list[Imported] = []

        def edit(table: ControlTable) -> ControlTable:
            _refuse_taken_names(table, given)
            joined = join(table, given)
            _refuse_promises(table, joined)
            counts[:] = [_difference(table, joined)]
            return joined

        change = await self._change(edit)
        return Committed(counts[0], change.after)

    async def rewrap(self, new_master: MasterKey) -> ControlState:
        """Wraps every secret under another master key. Who does not have that one, as this store object may not, is
        refused afterwards."""
        return (await self._change(lambda table: table, master=new_master)).after

    async def rewrap_from_other(self, state: ControlState) -> ControlState:
        """Wraps what was read under this process's own key where it is under the other one: it becomes the one in use.

        Once in the life of a process: where two have them the other way round, each would undo it.
        """
        if state.head is None or state.head.master_key_id == self._master.key_id:
            return state
        return await self.rewrap(self._master)

    async def _change(self, edit: Edit, floor: int = 0, master: MasterKey | None = None) -> Change:
        """Applies `edit` to what is stored until it holds; it may run more than once and must be pure."""
        try:
            async with asyncio.timeout(WRITE_DEADLINE_S), self._writing:
                while True:
                    before = await self.read()
                    table = edit(before.table)
                    if table == before.table and before.generation >= floor and master is None:
                        return Change(before, before)
                    head = next_head(before.head, floor, master or self._master)
                    after = ControlState(head, table)
                    if await self._commit(before, after, master or self._master):
                        return Change(before, after)
                    await asyncio.sleep(random.uniform(0, 0.02))  # noqa: S311 - spreads writers, guards nothing
        except TimeoutError as error:
            raise UnavailableError(
                f"the control data could not be written within {WRITE_DEADLINE_S:g} s: others write all the time", 1.0
            ) from error

    async def _commit(self, before: ControlState, after: ControlState, master: MasterKey) -> bool:
        assert after.head is not None
        after.table.check_invariants()
        old, new = entries(before.table), entries(after.table)
        old_form = (before.head.master_key_id, before.head.schema) if before.head else None
        same_form = old_form == (after.head.master_key_id, after.head.schema)
        removed = [name for name in old if name not in new]
        written = {n: e for n, e in new.items() if not same_form or n not in old or old[n] != e}
        arguments = [before.head.to_text() if before.head else "", str(len(removed)), *removed]
        for name, entry in written.items():
            arguments += [name, to_json(seal(entry, master))]
        arguments += [_HEAD, after.head.to_text()]
        return bool(await self._call(self._redis.eval(_COMMIT, 1, CONTROL_KEY, *arguments)))

    def _parse(self, texts: dict[str, str]) -> ControlState:
        if not texts:
            return EMPTY_STATE
        head = parse_head(texts.pop(_HEAD, "{}"), _WHAT)
        master = require_master(head.master_key_id, self._master, _WHAT)
        parsed = {name: (text, self._entry(name, text, master, head.schema)) for name, text in texts.items()}
        table = table_from({name: entry for name, (_, entry) in parsed.items()}, _WHAT)
        self._parsed = parsed
        return ControlState(head, table)

    def _entry(self, name: str, text: str, master: MasterKey, schema: int) -> Entry:
        known = self._parsed.get(name)
        if known is not None and known[0] == text:
            return known[1]
        return unseal(name, parse_object(text, f"{_WHAT}, record {name[:64]!r}"), master, schema)

    async def _call(self, call: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(CALL_DEADLINE_S):
                return await call
        except TimeoutError as error:
            raise UnavailableError(f"Redis did not answer within {CALL_DEADLINE_S:g} s", 1.0) from error
        except (RedisConnectionError, RedisTimeoutError) as error:
            raise UnavailableError(f"Redis is out of reach: {error}", 1.0) from error
        except ResponseError as error:
            raise PreconditionError(f"Redis refused to read or write {CONTROL_KEY}: {error}") from error
        except RedisError as error:
            raise UnavailableError(f"Redis failed: {error}", 1.0) from error


def _text(value: bytes | str) -> str:
    return value if isinstance(value, str) else value.decode("utf-8", "replace")


def _refuse_taken_names(table: ControlTable, given: ControlTable) -> None:
    taken = name_conflicts(table, given)
    if taken:
        raise AlreadyExistsError(
            f"other tenants here have names that the document gives: {', '.join(taken)}; delete them here, or import "
            "into an empty store"
        )


def _refuse_promises(before: ControlTable, after: ControlTable) -> None:
    """Refuses guarantees that do not fit, unless they did not fit before and do not grow."""
    old, new = ([tenant.quota for tenant in table.tenants.values()] for table in (before, after))
    if any(guaranteed(new, tier) > guaranteed(old, tier) for tier in TierKind):
        check_sum(new)


def _difference(before: ControlTable, after: ControlTable) -> Imported:
    return Imported(
        num_tenants=sum(1 for i, tenant in after.tenants.items() if before.tenants.get(i) != tenant),
        num_keys=sum(1 for i, key in after.keys.items() if before.keys.get(i) != key),
    )
