"""Laws of the control data: joining never undoes, wrapping never opens for another, texts never alias."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache_store.domain import AdapterDigest, Epoch, TenantId
from cache_store.errors import (
    AlreadyExistsError,
    CorruptDataError,
    InvalidRequestError,
    NotFoundError,
    PreconditionError,
)
from cache_store.quota import check_sum
from cache_store.tier_kind import TierKind
from services.tenants.adapter import LoadedAdapter, with_loaded, with_unloaded
from services.tenants.api_key import matches, new_api_key, parse
from services.tenants.directory import KnownTenant
from services.tenants.document import DocumentKind, Sealer, read_document, write_document
from services.tenants.guarantees import quotas_in_force, shortfalls
from services.tenants.master_key import MasterKey
from services.tenants.model import ApiKey, KeyId, Tenant, checked_name
from services.tenants.purge import EVERYTHING, ModelScope, PartitionScope, Purge, PurgeScope
from services.tenants.quota_change import QuotaChange, ShareChange
from services.tenants.state import ControlState, Head
from services.tenants.table import (
    ControlTable,
    add_key,
    add_tenant,
    delete_tenant,
    join,
    purge_tenant,
    revoke_key,
    rotate_epoch,
    set_quota,
    table_of,
)
from tests.support.control import MASTER
from tests.support.domains import FORMAT

KINDS = ("add", "delete", "rotate", "key", "revoke", "quota", "limit", "partition", "model", "everything")
KINDS += ("load", "unload")
SCOPES = ("a", "b", "c")
NAMES = ("acme", "globex", "initech")
odd_text = st.text(st.characters(), max_size=40) | st.sampled_from(
    ["", "\0", "a\0b", "é", "e\u0301", "tenant:", "\ud800"]
)


@dataclass(frozen=True)
class Op:
    """One change of a table."""

    kind: str
    pick: int


ops = st.lists(
    st.builds(Op, st.sampled_from(KINDS), st.integers(0, 5)),
    max_size=14,
)


def applied(table: ControlTable, changes: list[Op], branch: str) -> ControlTable:
    """`table` after `changes`; ids and epochs carry `branch`, as random ones would differ between two histories."""
    return reduce(lambda now, step: _apply(now, step[1], f"{branch}-{step[0]}", step[0]), zip(count(), changes), table)


def _apply(table: ControlTable, op: Op, mark: str, now: int) -> ControlTable:
    name = NAMES[op.pick % len(NAMES)]
    try:
        match op.kind:
            case "add":
                secret = mark.encode().ljust(32, b".")
                return add_tenant(table, Tenant(TenantId(mark), name, Epoch(f"e-{mark}"), 0, secret, now, now))
            case "delete":
                return delete_tenant(table, name)
            case "rotate":
                return rotate_epoch(table, name, Epoch(f"e-{mark}"), now)
            case "partition" | "model" | "everything":
                purge = Purge(_scope(op), Epoch(f"e-{mark}"), f"m-{mark}", now)
                return purge_tenant(table, table.tenant_by_name(name).id, purge)
            case "quota":
                share = ShareChange(minimum=op.pick / 5)
                return set_quota(table, name, QuotaChange(shares={TierKind.DEVICE: share}), now)
            case "limit":
                return set_quota(table, name, QuotaChange(requests_in_flight=op.pick), now)
            case "key":
                tenant = table.tenant_by_name(name).id
                key = ApiKey(KeyId(f"k-{mark}"), tenant, mark.encode(), now, revoked=False)
                return add_key(table, key) if table.num_live_keys(tenant) < 2 else table
            case "load":
                tenants = None if op.pick % 2 else frozenset(table.tenants)
                adapter = LoadedAdapter(name, "m", f"/{mark}", AdapterDigest(mark.encode()), tenants, 0, now)
                return replace(table, adapters=with_loaded(table.adapters, adapter))
            case "unload":
                return replace(table, adapters=with_unloaded(table.adapters, name, now))
            case _:
                keys = sorted(table.keys)
                return revoke_key(table, keys[op.pick % len(keys)]) if keys else table
    except (AlreadyExistsError, NotFoundError, PreconditionError):
        return table


def _scope(op: Op) -> PurgeScope:
    names = {"partition": PartitionScope, "model": ModelScope}
    return names[op.kind](SCOPES[op.pick % len(SCOPES)]) if op.kind in names else EVERYTHING


def epochs_of(tenant: Tenant) -> dict[tuple[str, str], Epoch]:
    """Of the domains of each partition and model."""
    known = KnownTenant(tenant, 1)
    return {(p, m): known.domain(p, m, FORMAT).epoch for p in SCOPES for m in SCOPES}


@st.composite
def histories(draw: st.DrawFn) -> tuple[ControlTable, ControlTable, ControlTable]:
    """A common past and two futures of it, as of a store that was rolled back and written on."""
    past = applied(table_of([], [], []), [Op("add", 0), Op("add", 1), *draw(ops)], "past")
    return past, applied(past, draw(ops), "left"), applied(past, draw(ops), "right")


@given(histories())
def test_joining_is_commutative_idempotent_and_absorbs(tables: tuple[ControlTable, ControlTable, ControlTable]) -> None:
    past, left, right = tables
    joined = join(left, right)
    joined.check_invariants()
    assert joined == join(right, left)
    assert join(joined, left) == join(joined, right) == join(joined, past) == joined
    assert join(left, left) == left


@given(histories())
def test_a_store_rolled_back_is_brought_to_what_was_known(
    tables: tuple[ControlTable, ControlTable, ControlTable],
) -> None:
    past, now, _ = tables
    assert join(past, now) == now


@given(histories())
def test_nothing_that_was_ended_lives_after_a_join(tables: tuple[ControlTable, ControlTable, ControlTable]) -> None:
    past, left, right = tables
    joined = join(left, right)
    for side in (left, right):
        assert not side.deleted & joined.tenants.keys()
        for tenant_id in past.tenants.keys() & side.tenants.keys() & joined.tenants.keys():
            before, after = epochs_of(past.tenants[tenant_id]), epochs_of(joined.tenants[tenant_id])
            for scope, epoch in epochs_of(side.tenants[tenant_id]).items():
                assert epoch == before[scope] or after[scope] != before[scope]
        for key_id, key in side.keys.items():
            assert not key.revoked or key_id not in joined.keys or joined.keys[key_id].revoked


@given(histories())
def test_a_purge_in_either_history_makes_a_fence_newer_and_joining_makes_it_no_older(
    tables: tuple[ControlTable, ControlTable, ControlTable],
) -> None:
    past, left, right = tables
    joined = join(left, right).tenants
    for tenant_id in past.tenants.keys() & joined.keys():
        sides = [side.tenants[tenant_id].fence for side in (left, right)]
        for fence in sides:
            before = past.tenants[tenant_id].fence
            assert (fence.order > before.order) == (fence != before)
            assert joined[tenant_id].fence.order >= fence.order
        assert joined[tenant_id].fence.epoch in {fence.epoch for fence in sides}


@given(histories())
def test_nothing_that_lives_is_lost_in_a_join(tables: tuple[ControlTable, ControlTable, ControlTable]) -> None:
    _, left, right = tables
    joined = join(left, right)
    assert joined.tenants.keys() == (left.tenants.keys() | right.tenants.keys()) - joined.deleted
    assert {tenant.name.split("-")[0] for tenant in joined.tenants.values()} <= set(NAMES)


@given(histories())
def test_an_adapter_is_what_the_history_with_more_changes_of_it_says(
    tables: tuple[ControlTable, ControlTable, ControlTable],
) -> None:
    past, left, right = tables
    joined = join(left, right).adapters
    assert joined.keys() == left.adapters.keys() | right.adapters.keys()
    for name, adapter in joined.items():
        sides = [side.adapters[name] for side in (left, right) if name in side.adapters]
        assert adapter in sides
        assert adapter.number == max(side.number for side in sides)
        if name in past.adapters and any(side != past.adapters[name] for side in sides):
            assert adapter != past.adapters[name], "what was unloaded or replaced does not come back"


@given(histories(), st.permutations(range(3)))
def test_three_routers_that_join_in_any_order_and_then_again_end_up_equal(
    tables: tuple[ControlTable, ControlTable, ControlTable], order: list[int]
) -> None:
    store = table_of([], [], [])
    for index in order:
        store = join(store, tables[index])
    views = [join(store, table) for table in tables]
    assert views == [store] * 3


@given(histories())
def test_of_quotas_and_limits_the_one_with_more_changes_is_in_a_join_whatever_the_epoch_is(
    tables: tuple[ControlTable, ControlTable, ControlTable],
) -> None:
    _, left, right = tables
    joined = join(left, right).tenants
    for tenant_id in left.tenants.keys() & right.tenants.keys() & joined.keys():
        a, b, after = left.tenants[tenant_id], right.tenants[tenant_id], joined[tenant_id]
        assert after.quota_number == max(a.quota_number, b.quota_number)
        newer = [one for one in (a, b) if one.quota_number == after.quota_number]
        assert (after.quota, after.limits) in [(one.quota, one.limits) for one in newer]


@given(histories())
def test_the_guarantees_in_force_fit_and_are_those_that_were_set_where_these_fit(
    tables: tuple[ControlTable, ControlTable, ControlTable],
) -> None:
    _, left, right = tables
    for table in (left, right):
        check_sum(tenant.quota for tenant in table.tenants.values())
    joined = join(left, right)
    in_force = quotas_in_force(ControlState(None, joined))
    check_sum(in_force.quotas.values())
    fallen = {each.tenant_name for each in shortfalls(joined)}
    for tenant in joined.tenants.values():
        now = in_force.of(tenant.id)
        assert (now == tenant.quota) == (tenant.name not in fallen)
        assert now.share(TierKind.DEVICE).maximum == tenant.quota.share(TierKind.DEVICE).maximum


@given(histories())
def test_a_table_survives_being_written_down(tables: tuple[ControlTable, ControlTable, ControlTable]) -> None:
    state = ControlState(Head("s", 1, "w", MASTER.key_id), join(tables[1], tables[2]))
    data = write_document(DocumentKind.SNAPSHOT, state, Sealer(MASTER))
    assert read_document(DocumentKind.SNAPSHOT, data, MASTER, "it") == state


@given(odd_text, odd_text, st.binary(min_size=32, max_size=32), st.binary(min_size=32, max_size=32))
def test_a_secret_opens_for_exactly_its_tenant(a: str, b: str, secret: bytes, key: bytes) -> None:
    master = MasterKey(key)
    wrapped = master.wrap(TenantId(a), secret)
    assert master.unwrap(TenantId(a), wrapped) == secret
    if a != b:
        with pytest.raises(CorruptDataError):
            master.unwrap(TenantId(b), wrapped)


@given(st.binary(max_size=120))
def test_arbitrary_bytes_never_open(data: bytes) -> None:
    with pytest.raises(CorruptDataError):
        MASTER.unwrap(TenantId("acme"), data)


KEY = new_api_key(TenantId("acme"), 1.0)


@given(odd_text | st.from_regex(r"sc-[a-z2-7]{16}-[a-z2-7]{52}\n?") | st.text("abc234-sS ", max_size=80))
def test_odd_texts_are_no_key_or_the_wrong_one(text: str) -> None:
    parsed = parse(text)
    if parsed is not None:
        assert text == f"sc-{parsed.key_id}-{parsed.secret}"
        assert not matches(parsed, KEY.key.secret_hash)


@given(st.integers(0, len(KEY.text) - 1), st.characters())
def test_a_key_with_one_other_character_does_not_match(position: int, character: str) -> None:
    text = KEY.text[:position] + character + KEY.text[position + 1 :]
    parsed = parse(text)
    assert (parsed is not None and matches(parsed, KEY.key.secret_hash)) == (text == KEY.text)


@given(odd_text | st.text("abz09-", max_size=60))
def test_a_name_that_is_taken_is_safe_everywhere(name: str) -> None:
    try:
        checked_name(name)
    except InvalidRequestError:
        return
    assert name.isascii()
    assert name.strip("-") == name != ""
    assert not set(name) - set("abcdefghijklmnopqrstuvwxyz0123456789-")
