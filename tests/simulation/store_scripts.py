"""The product's Lua scripts in Python, found by their text: one for every script that the simulation runs.

A script that is changed has another name, so that what stands here cannot be run in its place by mistake.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from typing import Any

from cache_store.digest import DIGEST_BYTES
from cache_store.redis_scripts import ScriptKind, load_script
from services.tenants.redis_store import _COMMIT

Body = Callable[[Any, Sequence[bytes], Sequence[bytes]], Any]

_CURRENT = re.compile(rb"^(\d+) (\w+)$")


def lookup(store: Any, keys: Sequence[bytes], arguments: Sequence[bytes]) -> Any:
    """lookup.lua"""
    chain = arguments[0]
    length = len(chain) // DIGEST_BYTES

    def holds(key: bytes, position: int) -> bool:
        digest = chain[(position - 1) * DIGEST_BYTES : position * DIGEST_BYTES]
        return bool(store.sismember(key, digest))

    found = []
    for key in keys:
        low, high = 0, length
        if not holds(key, 1):
            high = 0
        elif holds(key, length):
            low = length
        else:
            low, high = 1, length - 1
        while low < high:
            middle = (low + high + 1) // 2
            if holds(key, middle):
                low = middle
            else:
                high = middle - 1
        found.append(low)
    return found


def renew(store: Any, keys: Sequence[bytes], arguments: Sequence[bytes]) -> Any:
    """renew.lua"""
    worker, incarnation, order_text, record, lease_ms = arguments
    order = int(order_text) if order_text else None
    current_order, current_incarnation = 0, None
    current = store.hget(keys[0], worker)
    if current is not None and (found := _CURRENT.match(current)):
        current_order, current_incarnation = int(found[1]), found[2]
    if order is None and current_incarnation == incarnation:
        order = current_order
    elif order is None:
        seconds, micros = store.time()
        order = max(int(seconds) * 1_000_000 + int(micros), current_order + 1)
    text = str(order).encode()
    if current_incarnation is not None and current_incarnation != incarnation and current_order >= order:
        return [b"superseded", text]
    before = store.set(keys[1], record, b"PX", lease_ms, b"GET")
    store.hset(keys[0], worker, text + b" " + incarnation)
    return [b"kept" if before is not None else b"new", text]


def publish_quotas(store: Any, keys: Sequence[bytes], arguments: Sequence[bytes]) -> Any:
    """publish_quotas.lua"""
    if (store.hget(keys[0], b"head") or b"") != arguments[0]:
        return 0
    store.hset(keys[0], b"head", arguments[1], b"body", arguments[2])
    return 1


def commit(store: Any, keys: Sequence[bytes], arguments: Sequence[bytes]) -> Any:
    """The commit of `services/tenants/redis_store.py`."""
    if (store.hget(keys[0], b"head") or b"") != arguments[0]:
        return 0
    num_removed = int(arguments[1])
    for name in arguments[2 : 2 + num_removed]:
        store.hdel(keys[0], name)
    store.hset(keys[0], *arguments[2 + num_removed :])
    return 1


class _Scripts:
    """By the name that a server gives to their text."""

    def __init__(self, bodies: Sequence[tuple[bytes, Body]]) -> None:
        self._bodies = {_name(text): body for text, body in bodies}

    def name_of(self, text: bytes) -> bytes:
        """Raises KeyError for a script that nobody has translated."""
        name = _name(text)
        if name not in self._bodies:
            raise KeyError(f"the simulation knows no such script; write it in {__name__}: {text[:80]!r}")
        return name

    def __getitem__(self, name: bytes) -> Body:
        return self._bodies[name]


def _name(text: bytes) -> bytes:
    return hashlib.sha1(text, usedforsecurity=False).hexdigest().encode()


SCRIPTS = _Scripts(
    (
        (load_script("lookup", ScriptKind.READS).text, lookup),
        (load_script("renew", ScriptKind.WRITES).text, renew),
        (load_script("publish_quotas", ScriptKind.WRITES).text, publish_quotas),
        (_COMMIT.encode(), commit),
    )
)
