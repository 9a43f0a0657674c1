"""Lua scripts that run inside Redis, read from `cache_store/scripts`."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import StrEnum
from importlib.resources import files


class ScriptKind(StrEnum):
    """How a script may be called; the value is the command."""

    READS = "EVALSHA_RO"
    """Writes nothing: also allowed to users without the right to write."""
    WRITES = "EVALSHA"


@dataclass(frozen=True, slots=True)
class Script:
    """Text of a script and the name under which the server caches it."""

    kind: ScriptKind
    text: bytes

    @property
    def sha1(self) -> str:
        """Name in the server's cache."""
        return hashlib.sha1(self.text, usedforsecurity=False).hexdigest()

    @property
    def by_text(self) -> str:
        """Command that takes the text instead of the name."""
        return {ScriptKind.READS: "EVAL_RO", ScriptKind.WRITES: "EVAL"}[self.kind]


def load_script(name: str, kind: ScriptKind) -> Script:
    """Reads `name`.lua."""
    return Script(kind, (files("cache_store") / "scripts" / f"{name}.lua").read_bytes())
