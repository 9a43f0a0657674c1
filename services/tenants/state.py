"""The head of the control data: schema, whose store it is, how new it is, which master key it is wrapped under.

A store's head changes with every write, so that equal heads mean equal data: readers poll it, writers compare it.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from cache_store.errors import CorruptDataError, PreconditionError, VersionError
from services.tenants.fields import Fields, JsonObject, parse_object, to_json
from services.tenants.master_key import MasterKey
from services.tenants.table import ControlTable

CONTROL_SCHEMA = 4
"""Version of the records in Redis, in snapshots and in exported documents."""

READABLE_SCHEMAS = (1, 2, 3, CONTROL_SCHEMA)
"""Schemas that are read. In the first one tenants had no quotas, they get the usual ones; up to the second nothing but
everything was purged; up to the third there were no adapters, and all had the usual share of audits. The next write
makes the store one of this schema."""


@dataclass(frozen=True, slots=True)
class Head:
    """Names one state of one store."""

    store_id: str
    """Random, given to a store with its first record; another one means that the old store was lost."""
    generation: int
    """Counts writes; only ever grows where nothing was lost."""
    write_id: str
    """Random per write: two states of one generation are not taken for each other."""
    master_key_id: str
    schema: int = CONTROL_SCHEMA
    """Of the records below it."""

    def to_fields(self) -> JsonObject:
        """As it stands in documents."""
        return {
            "schema": self.schema,
            "store_id": self.store_id,
            "generation": self.generation,
            "write_id": self.write_id,
            "master_key_id": self.master_key_id,
        }

    def to_text(self) -> str:
        """As it stands in the store; equal texts mean equal data."""
        return to_json(self.to_fields())


@dataclass(frozen=True)
class ControlState:
    """All control data at one moment. Without a head it is that of an empty store."""

    head: Head | None
    table: ControlTable

    @property
    def generation(self) -> int:
        """0 for an empty store."""
        return self.head.generation if self.head else 0


EMPTY_STATE = ControlState(None, ControlTable())


def next_head(before: Head | None, floor: int, master: MasterKey) -> Head:
    """Head of a write on top of `before`, with a generation above that and above `floor`."""
    return Head(
        store_id=before.store_id if before else secrets.token_hex(16),
        generation=max(before.generation if before else 0, floor) + 1,
        write_id=secrets.token_hex(8),
        master_key_id=master.key_id,
    )


def parse_head(text: str | bytes, what: str) -> Head:
    """Head written by `to_text`. Raises VersionError for another schema, CorruptDataError; `what` names the place."""
    return head_of(parse_object(text, what))


def head_of(fields: Fields) -> Head:
    """As `parse_head`, of an object already parsed."""
    schema = readable_schema(fields)
    generation = fields.integer("generation")
    if generation < 1:
        raise CorruptDataError(f"{fields.what} has generation {generation}; generations begin at 1")
    return Head(fields.text("store_id"), generation, fields.text("write_id"), fields.text("master_key_id"), schema)


def readable_schema(fields: Fields) -> int:
    """Schema of an object. Raises VersionError where this build does not read it."""
    schema = fields.integer("schema")
    if schema not in READABLE_SCHEMAS:
        raise VersionError(fields.what, schema, CONTROL_SCHEMA)
    return schema


def require_master(key_id: str, master: MasterKey, what: str) -> MasterKey:
    """The key, of those in use, that the data is under. Raises PreconditionError where it is another one."""
    found = master.called(key_id)
    if found is None:
        raise PreconditionError(
            f"{what} is under master key {key_id[:16]}, this process has {master.key_id}; start it with the master key "
            "under which the data was written"
        )
    return found
