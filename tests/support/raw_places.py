"""All bytes that a worker with tiers keeps, and all that it wrote to Redis: read raw, past every interface."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import redis

from tests.support.redis_servers import RedisServer
from worker.block_copier import ArrayCopier
from worker.runner import Runner
from worker.slow_copier import SlowCopier


def device_bytes(runner: Runner) -> bytes:
    """The pools of all cache groups."""
    return b"".join(pool.tobytes() for pool in _copier(runner)._pools)


def host_bytes(runner: Runner) -> bytes:
    """The host pool."""
    return _copier(runner).host.tobytes()


def buffer_bytes(runner: Runner) -> bytes:
    """What waits to be written to disk, or was read from there last. Those that are just being written are left out."""
    mover: Any = runner.transfers
    idle = gc.get_referents(*gc.get_referents(mover._buffers))  # only the engine may take them out of their queue
    buffers = (each for each in (*idle, mover._read_buffer) if isinstance(each, bytearray))
    return b"\n".join(bytes(each.strip(b"\0")) for each in buffers)


def disk_bytes(folder: Path) -> bytes:
    """Paths and contents of all that lies below `folder`."""
    paths = sorted(folder.rglob("*"))
    return b"\n".join(bytes(path) + b"\n" + _content(path) for path in paths)


def num_files(folder: Path) -> int:
    """Files of blocks below `folder`."""
    return sum(path.is_file() and path.parent.name != folder.name and path.name != "lock" for path in folder.rglob("*"))


def redis_bytes(server: RedisServer) -> bytes:
    """Names and values of all keys."""
    with redis.Redis.from_url(server.urls.operator) as client:
        return b"\n".join(key + b"\n" + _value(client, key) for key in sorted(client.scan_iter(count=1_000)))


def found_in(places: Mapping[str, bytes], needles: Iterable[bytes]) -> set[str]:
    """Names of the places where at least one of `needles` is."""
    needles = tuple(needles)
    return {name for name, place in places.items() if any(needle in place for needle in needles)}


def _copier(runner: Any) -> ArrayCopier:
    copier = runner.transfers._copier
    if isinstance(copier, SlowCopier):
        copier = copier._inner
    assert isinstance(copier, ArrayCopier)
    return copier


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except (FileNotFoundError, IsADirectoryError):
        return b""


def _value(client: Any, key: bytes) -> bytes:
    match client.type(key):
        case b"none":
            return b""
        case b"string":
            return bytes(client.get(key))
        case b"set":
            return b"\n".join(sorted(client.smembers(key)))
        case b"hash":
            return b"\n".join(part for item in client.hgetall(key).items() for part in item)
        case b"zset":
            return b"\n".join(client.zrange(key, 0, -1))
        case b"list":
            return b"\n".join(client.lrange(key, 0, -1))
        case b"stream":
            return repr(client.xrange(key)).encode()
        case kind:
            raise AssertionError(f"nobody reads {kind!r}")
