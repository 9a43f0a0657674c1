"""What a Redis server keeps and answers, as far as the product asks: the data model, without a network.

Checked against Valkey by `test_store.py`: the contract suites' behaviour, and random commands with equal replies. Time
is the caller's. Sets keep the order in which members came, so that every walk over one repeats.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from redis.exceptions import NoScriptError, ResponseError

from tests.simulation.store_scripts import SCRIPTS

Reply: TypeAlias = "int | bytes | list[Reply] | None"
Answer: TypeAlias = "Reply | ResponseError"

_WRONG_TYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"


@dataclass
class Stream:
    """A stream: entries in order of their ids."""

    entries: list[tuple[tuple[int, int], list[bytes]]] = field(default_factory=list)
    last: tuple[int, int] = (0, 0)

    def copy(self) -> Stream:
        return Stream(list(self.entries), self.last)


class Hash(dict[bytes, bytes]):
    """Field to value."""


class Set(dict[bytes, None]):
    """Members, in the order in which they came."""


_Collection = TypeVar("_Collection", Hash, Set)


@dataclass
class _Kept:
    value: bytes | Hash | Set | Stream
    ends_ms: int | None = None


class Store:
    """The data. `now_ms` is the server's clock."""

    def __init__(self, now_ms: Callable[[], int], rng: random.Random) -> None:
        self._now_ms = now_ms
        self._rng = rng
        self._keys: dict[bytes, _Kept] = {}
        self._scripts: set[bytes] = set()

    # Whole copies.

    def dump(self) -> dict[bytes, _Kept]:
        """All that is kept, to start from later."""
        return {key: _Kept(_copied(kept.value), kept.ends_ms) for key, kept in self._keys.items()}

    def restart(self, dump: Mapping[bytes, _Kept]) -> None:
        """Starts again with what was dumped; scripts are forgotten."""
        self._keys = {key: _Kept(_copied(kept.value), kept.ends_ms) for key, kept in dump.items()}
        self._scripts.clear()

    def names(self) -> list[bytes]:
        """Names of all that lives."""
        return [key for key in list(self._keys) if self._find(key) is not None]

    def members(self, key: str) -> frozenset[bytes]:
        """Of a set, to be looked at."""
        kept = self._find(key.encode())
        return frozenset(kept.value) if kept is not None and isinstance(kept.value, Set) else frozenset()

    # Commands.

    def execute(self, command: Sequence[str | bytes | int]) -> Answer:
        """The reply of one command; a refusal is returned, not raised."""
        name, *arguments = (_bytes(part) for part in command)
        method = _COMMANDS.get(name.upper())
        if method is None:
            return ResponseError(f"ERR unknown command '{name.decode()}'")
        try:
            return method(self, *arguments)
        except ResponseError as error:
            return error

    def get(self, key: bytes) -> Reply:
        kept = self._find(key)
        if kept is None:
            return None
        if not isinstance(kept.value, bytes):
            raise ResponseError(_WRONG_TYPE)
        return kept.value

    def set(self, key: bytes, value: bytes, *options: bytes) -> Reply:
        ends_ms, is_kept, wants_old = None, False, False
        words = list(options)
        while words:
            word = words.pop(0).upper()
            if word == b"PX":
                ends_ms = self._now_ms() + int(words.pop(0))
            elif word == b"NX":
                is_kept = self._find(key) is not None
            elif word == b"XX":
                is_kept = self._find(key) is None
            elif word == b"GET":
                wants_old = True
            else:
                raise ResponseError("ERR syntax error")
        old = self.get(key) if wants_old else None
        if not is_kept:
            self._keys[key] = _Kept(value, ends_ms)
        if wants_old:
            return old
        return None if is_kept else b"OK"

    def mget(self, *keys: bytes) -> Reply:
        found = (self._find(key) for key in keys)
        return [kept.value if kept is not None and isinstance(kept.value, bytes) else None for kept in found]

    def delete(self, *keys: bytes) -> Reply:
        return sum(self._find(key) is not None and self._keys.pop(key) is not None for key in keys)

    def exists(self, *keys: bytes) -> Reply:
        return sum(self._find(key) is not None for key in keys)

    def pexpire(self, key: bytes, milliseconds: bytes) -> Reply:
        kept = self._find(key)
        if kept is None:
            return 0
        kept.ends_ms = self._now_ms() + int(milliseconds)
        return 1

    def time(self) -> Reply:
        now_ms = self._now_ms()
        return [str(now_ms // 1000).encode(), str(now_ms % 1000 * 1000).encode()]

    def sadd(self, key: bytes, *members: bytes) -> Reply:
        held = self._made(key, Set)
        before = len(held)
        held.update(dict.fromkeys(members))
        return len(held) - before

    def srem(self, key: bytes, *members: bytes) -> Reply:
        held = self._seen(key, Set)
        num = sum(member in held and held.pop(member, 0) is None for member in members)
        self._drop_empty(key)
        return num

    def smembers(self, key: bytes) -> Reply:
        return list(self._seen(key, Set))

    def sismember(self, key: bytes, member: bytes) -> Reply:
        return int(member in self._seen(key, Set))

    def srandmember(self, key: bytes, count: bytes) -> Reply:
        held = list(self._seen(key, Set))
        return list(self._rng.sample(held, min(int(count), len(held))))

    def sscan(self, key: bytes, cursor: bytes, *options: bytes) -> Reply:
        """A portion of COUNT members; the cursor is where the next one begins."""
        held = sorted(self._seen(key, Set))
        count = int(options[1]) if options else 10
        start = int(cursor)
        ends = start + count >= len(held)
        return [b"0" if ends else str(start + count).encode(), list(held[start : start + count])]

    def hget(self, key: bytes, name: bytes) -> Reply:
        return self._seen(key, Hash).get(name)

    def hmget(self, key: bytes, *names: bytes) -> Reply:
        held = self._seen(key, Hash)
        return [held.get(name) for name in names]

    def hgetall(self, key: bytes) -> Reply:
        return [text for pair in self._seen(key, Hash).items() for text in pair]

    def hset(self, key: bytes, *pairs: bytes) -> Reply:
        held = self._made(key, Hash)
        before = len(held)
        held.update(zip(pairs[::2], pairs[1::2], strict=True))
        return len(held) - before

    def hdel(self, key: bytes, *names: bytes) -> Reply:
        held = self._seen(key, Hash)
        num = sum(held.pop(name, None) is not None for name in names)
        self._drop_empty(key)
        return num

    def hrandfield(self, key: bytes, count: bytes, *_: bytes) -> Reply:
        held = self._seen(key, Hash)
        names = self._rng.sample(list(held), min(int(count), len(held)))
        return [text for name in names for text in (name, held[name])]

    def xadd(self, key: bytes, *words: bytes) -> Reply:
        kept = self._find(key)
        stream = kept.value if kept is not None else Stream()
        if not isinstance(stream, Stream):
            raise ResponseError(_WRONG_TYPE)
        most: int | None = None
        rest = list(words)
        if rest[0].upper() == b"MAXLEN":
            most = int(rest[2] if rest[1] in (b"~", b"=") else rest[1])
            rest = rest[3:] if rest[1] in (b"~", b"=") else rest[2:]
        now_ms = self._now_ms()
        stream.last = max((now_ms, 0), (stream.last[0], stream.last[1] + 1))
        stream.entries.append((stream.last, rest[1:]))
        if most is not None:
            del stream.entries[: max(0, len(stream.entries) - most)]
        self._keys[key] = _Kept(stream)
        return _entry_id(stream.last)

    def xrange(self, key: bytes, start: bytes, end: bytes, *options: bytes) -> Reply:
        low, high = _bound(start, (0, 0)), _bound(end, (1 << 63, 0))
        found = [(at, fields) for at, fields in self._entries(key) if low <= at <= high]
        if start[:1] == b"(":
            found = [(at, fields) for at, fields in found if at != low]
        return [[_entry_id(at), list(fields)] for at, fields in found[: _count(options)]]

    def xrevrange(self, key: bytes, end: bytes, start: bytes, *options: bytes) -> Reply:
        low, high = _bound(start, (0, 0)), _bound(end, (1 << 63, 0))
        found = [(at, fields) for at, fields in reversed(self._entries(key)) if low <= at <= high]
        return [[_entry_id(at), list(fields)] for at, fields in found[: _count(options)]]

    def evalsha(self, sha1: bytes, num_keys: bytes, *words: bytes) -> Reply:
        if sha1 not in self._scripts:
            raise NoScriptError("NOSCRIPT No matching script. Please use EVAL.")
        return SCRIPTS[sha1](self, words[: int(num_keys)], words[int(num_keys) :])

    def eval(self, text: bytes, num_keys: bytes, *words: bytes) -> Reply:
        sha1 = SCRIPTS.name_of(text)
        self._scripts.add(sha1)
        return self.evalsha(sha1, num_keys, *words)

    # Inside.

    def _find(self, key: bytes) -> _Kept | None:
        kept = self._keys.get(key)
        if kept is not None and kept.ends_ms is not None and kept.ends_ms <= self._now_ms():
            del self._keys[key]
            return None
        return kept

    def _entries(self, key: bytes) -> list[tuple[tuple[int, int], list[bytes]]]:
        kept = self._find(key)
        if kept is None:
            return []
        if not isinstance(kept.value, Stream):
            raise ResponseError(_WRONG_TYPE)
        return kept.value.entries

    def _seen(self, key: bytes, kind: type[_Collection]) -> _Collection:
        kept = self._find(key)
        if kept is None:
            return kind()
        if not isinstance(kept.value, kind):
            raise ResponseError(_WRONG_TYPE)
        return kept.value

    def _made(self, key: bytes, kind: type[_Collection]) -> _Collection:
        held = self._seen(key, kind)
        if key not in self._keys:
            self._keys[key] = _Kept(held)
        return held

    def _drop_empty(self, key: bytes) -> None:
        kept = self._keys.get(key)
        if kept is not None and not isinstance(kept.value, Stream) and not kept.value:
            del self._keys[key]


_COMMANDS: dict[bytes, Callable[..., Reply]] = {
    b"GET": Store.get,
    b"SET": Store.set,
    b"MGET": Store.mget,
    b"DEL": Store.delete,
    b"UNLINK": Store.delete,
    b"EXISTS": Store.exists,
    b"PEXPIRE": Store.pexpire,
    b"TIME": Store.time,
    b"SADD": Store.sadd,
    b"SREM": Store.srem,
    b"SMEMBERS": Store.smembers,
    b"SISMEMBER": Store.sismember,
    b"SRANDMEMBER": Store.srandmember,
    b"SSCAN": Store.sscan,
    b"HGET": Store.hget,
    b"HMGET": Store.hmget,
    b"HGETALL": Store.hgetall,
    b"HSET": Store.hset,
    b"HDEL": Store.hdel,
    b"HRANDFIELD": Store.hrandfield,
    b"XADD": Store.xadd,
    b"XRANGE": Store.xrange,
    b"XREVRANGE": Store.xrevrange,
    b"EVAL": Store.eval,
    b"EVAL_RO": Store.eval,
    b"EVALSHA": Store.evalsha,
    b"EVALSHA_RO": Store.evalsha,
}


def _copied(value: bytes | Hash | Set | Stream) -> bytes | Hash | Set | Stream:
    if isinstance(value, bytes):
        return value
    return value.copy() if isinstance(value, Stream) else type(value)(value)


def _bytes(part: str | bytes | int) -> bytes:
    return part if isinstance(part, bytes) else str(part).encode()


def _entry_id(at: tuple[int, int]) -> bytes:
    return f"{at[0]}-{at[1]}".encode()


def _bound(text: bytes, open_end: tuple[int, int]) -> tuple[int, int]:
    if text in (b"-", b"+"):
        return open_end
    milliseconds, _, number = text.lstrip(b"(").partition(b"-")
    return int(milliseconds), int(number or 0)


def _count(options: Sequence[bytes]) -> int | None:
    return int(options[1]) if options else None
