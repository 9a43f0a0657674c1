"""What tenants used, in Redis: a hash per hour, and one that tells each writer's last batch.

Adding a batch and moving its writer's number is one script, so that a write that was cut off can be repeated.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import groupby

from cache_store.domain import TenantId
from cache_store.meter_batches import MeterBatch, MeterLine
from cache_store.meter_store import MeterSpace, MeterUnavailableError, MeterWriterId
from cache_store.metered import HOUR_S, RETAINED_HOURS, counts_text, parse_counts
from cache_store.redis_keys import meter_hour_key, meter_name_key, meter_writers_key
from cache_store.redis_scripts import ScriptKind, load_script
from cache_store.redis_session import REDIS_ERRORS, Argument, Command, RedisSession, Reply

CALL_DEADLINE_S = 2.0
READ_HOURS = 48
"""Asked for in one piece."""


class RedisMeterStore:
    """MeterStore over a session."""

    def __init__(self, session: RedisSession, space: MeterSpace, deadline_s: float = CALL_DEADLINE_S) -> None:
        self._session = session
        self._space = space
        self._deadline_s = deadline_s
        self._add = load_script("add_metered", ScriptKind.WRITES)

    async def add(self, writer: MeterWriterId, batch: MeterBatch) -> int:
        """See MeterStore."""
        keys = [meter_writers_key(self._space)]
        arguments: list[Argument] = [writer, batch.number, batch.oldest, RETAINED_HOURS]
        for hour, lines in _by_hour(batch.lines):
            keys.append(meter_hour_key(self._space, hour))
            arguments += [hour, len(lines)]
            for line in lines:
                arguments += [line.tenant, counts_text(line.counts)]
        try:
            last = await self._session.run_script(self._add, keys, arguments, self._deadline_s)
        except REDIS_ERRORS as error:
            raise MeterUnavailableError(str(error)) from error
        if not isinstance(last, int):
            raise MeterUnavailableError("a script of usage answers in another form than this build expects")
        return last

    async def read(self, first_hour: int, end_hour: int, tenant: TenantId | None) -> list[MeterLine]:
        """See MeterStore."""
        lines: list[MeterLine] = []
        for start in range(first_hour, end_hour, READ_HOURS):
            hours = range(start, min(start + READ_HOURS, end_hour))
            commands = [self._question(hour, tenant) for hour in hours]
            try:
                replies = await self._session.pipeline(commands, self._deadline_s)
            except REDIS_ERRORS as error:
                raise MeterUnavailableError(str(error)) from error
            for hour, reply in zip(hours, replies, strict=True):
                lines += _lines(hour, [tenant.encode(), reply] if tenant is not None else reply)
        return lines

    def _question(self, hour: int, tenant: TenantId | None) -> Command:
        key = meter_hour_key(self._space, hour)
        return ("HGETALL", key) if tenant is None else ("HGET", key, tenant)


class RedisMeterNames:
    """MeterNames over a session: a key each, which expires when the last hour has."""

    def __init__(self, session: RedisSession, deadline_s: float = CALL_DEADLINE_S) -> None:
        self._session = session
        self._deadline_s = deadline_s

    async def keep(self, tenant: TenantId, name: str) -> None:
        """See MeterNames."""
        await self._call(("SET", meter_name_key(tenant), name, "EX", (RETAINED_HOURS + 1) * HOUR_S))

    async def of(self, tenants: Collection[TenantId]) -> Mapping[TenantId, str]:
        """See MeterNames."""
        asked = sorted(tenants)
        reply = await self._call(("MGET", *map(meter_name_key, asked))) if asked else []
        names = reply if isinstance(reply, list) else []
        found = zip(asked, names, strict=False)
        return {tenant: name.decode("utf-8", "replace") for tenant, name in found if isinstance(name, bytes)}

    async def _call(self, command: Command) -> Reply:
        try:
            return await self._session.call(command, self._deadline_s)
        except REDIS_ERRORS as error:
            raise MeterUnavailableError(str(error)) from error


def _by_hour(lines: Iterable[MeterLine]) -> list[tuple[int, list[MeterLine]]]:
    ordered = sorted(lines, key=lambda line: line.hour)
    return [(hour, list(each)) for hour, each in groupby(ordered, key=lambda line: line.hour)]


def _lines(hour: int, reply: Reply | list[Reply]) -> list[MeterLine]:
    """Of the fields of an hour's hash; whatever has another form than ours is left out."""
    values = reply if isinstance(reply, list) else []
    pairs = zip(values[::2], values[1::2], strict=False)
    found = {
        TenantId(tenant.decode("utf-8", "replace")): parse_counts(text.decode("utf-8", "replace"))
        for tenant, text in pairs
        if isinstance(tenant, bytes) and isinstance(text, bytes)
    }
    return [MeterLine(hour, tenant, found[tenant]) for tenant in sorted(found)]
