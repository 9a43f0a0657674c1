"""Content digests of model files, remembered by path, size and time of change.

Hashing hundreds of megabytes at every start would cost seconds, so each file's digest is kept in a small JSON file of
the cache folder. A record that does not fit, or is damaged, costs a new hash and nothing else. Several processes may
write at once: each record is replaced atomically, and all of them write the same.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import structlog

from cache_store.encoding import encode
from worker.model_files.folder import ModelFolder

_RECORD_VERSION = 1
_DIGEST_BYTES = 16
_log = structlog.get_logger(__name__)


def default_cache_dir() -> Path:
    """Where digests, converted models and compiled kernels are kept unless told otherwise."""
    return Path.home() / ".cache" / "stemcache"


def weights_digest(folder: ModelFolder, cache_dir: Path) -> bytes:
    """16 bytes naming the configuration and the content of all weight files."""
    files = (folder.path / "config.json", *folder.weight_files)
    named = [field for file in files for field in (file.name, _file_digest(file, cache_dir))]
    return hashlib.blake2b(encode(*named), digest_size=_DIGEST_BYTES, person=b"sc-weights").digest()


def _file_digest(file: Path, cache_dir: Path) -> bytes:
    stat = file.stat()
    key = [_RECORD_VERSION, str(file), stat.st_size, stat.st_mtime_ns]
    name = hashlib.blake2b(str(file).encode("utf-8", "surrogateescape"), digest_size=_DIGEST_BYTES).hexdigest()
    record = cache_dir / "digests" / f"{name}.json"
    known = _remembered(record, key)
    if known is not None:
        return known
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, lambda: hashlib.blake2b(digest_size=_DIGEST_BYTES)).digest()
    _remember(record, key, digest)
    return digest


def _remembered(record: Path, key: list[object]) -> bytes | None:
    try:
        content = json.loads(record.read_text())
        digest = bytes.fromhex(content["digest"]) if content["key"] == key else None
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        _log.warning("weights_digest_record_unreadable", path=str(record), error=str(error))
        return None
    return digest if digest is not None and len(digest) == _DIGEST_BYTES else None


def _remember(record: Path, key: list[object], digest: bytes) -> None:
    """A cache folder that cannot be written costs time at the next start, not this one."""
    temporary = record.with_suffix(f".{os.getpid()}.tmp")
    try:
        record.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps({"key": key, "digest": digest.hex()}))
        temporary.replace(record)
    except OSError as error:
        _log.warning("weights_digest_not_remembered", path=str(record), error=str(error))
