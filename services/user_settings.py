"""What a user of the command line may set once instead of with each command."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from services.settings import environment


@dataclass(frozen=True, slots=True)
class UserSettings:
    """Defaults of the command line; a flag goes first."""

    home: Path
    """STEMCACHE_HOME: the data folder of `stemcache up`."""
    cache_dir: Path
    """STEMCACHE_CACHE_DIR: converted models, digests and compiled kernels; can be deleted at any time."""
    redis_url: str = field(repr=False)
    """STEMCACHE_REDIS_URL; empty: the embedded Valkey."""
    api_key: str = field(repr=False)
    """STEMCACHE_API_KEY."""

    @staticmethod
    def load(environ: Mapping[str, str] | None = None) -> UserSettings:
        """Reads `environ`, by default this process's."""
        found = environment() if environ is None else environ

        def value(name: str, default: str) -> str:
            return found.get(name, "").strip() or default

        return UserSettings(
            home=Path(value("STEMCACHE_HOME", "~/.local/share/stemcache")).expanduser(),
            cache_dir=Path(value("STEMCACHE_CACHE_DIR", "~/.cache/stemcache")).expanduser(),
            redis_url=value("STEMCACHE_REDIS_URL", ""),
            api_key=value("STEMCACHE_API_KEY", ""),
        )
