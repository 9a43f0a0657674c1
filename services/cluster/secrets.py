"""Where the master key of a system comes from: the environment, or a file that is made at the first start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cache_store.errors import InvalidRequestError
from services.cluster.data_folder import DataFolder
from services.tenants import master_key

_VALUE = "STEMCACHE_MASTER_KEY"
_FILE = "STEMCACHE_MASTER_KEY_FILE"


@dataclass(frozen=True, slots=True)
class MasterKeySource:
    """How processes are told the master key, and what workers get instead of it."""

    variables: Mapping[str, str] = field(repr=False)
    """For the environment of a router."""
    cluster_key: bytes = field(repr=False)
    """Key of the MAC of request tokens, derived from the master key."""


def master_key_source(folder: DataFolder, environ: Mapping[str, str]) -> MasterKeySource:
    """The key that the environment gives, else the folder's, made where there is none. Raises InvalidRequestError."""
    value, path = environ.get(_VALUE, "").strip(), environ.get(_FILE, "").strip()
    if value and path:
        raise InvalidRequestError(_FILE, f"{_VALUE} and {_FILE} are both set; unset one of them")
    if value:
        return MasterKeySource({_VALUE: value}, master_key.cluster_key(master_key.from_value(value)))
    file = Path(path) if path else folder.master_key
    if not path and not file.exists():
        master_key.create_file(file)
    return MasterKeySource({_FILE: str(file)}, master_key.cluster_key(master_key.from_file(file)))
