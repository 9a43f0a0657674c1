"""Names the tokenizer of a model folder, so that a router and a worker can see that they mean the same token ids.

Knows file names and bytes only, not how a tokenizer works. Holds no state.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from cache_store.encoding import encode
from cache_store.errors import PreconditionError

TOKENIZER_FILES = (
    "added_tokens.json",
    "merges.txt",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
)
"""Files of a Hugging Face folder that decide which ids a text gets."""


def tokenizer_digest(folder: Path) -> str:
    """32 hex digits over the tokenizer files of `folder`. Raises PreconditionError where it has none."""
    fields: list[str | bytes] = []
    for name in TOKENIZER_FILES:
        path = folder / name
        if path.is_file():
            fields += [name, path.read_bytes()]
    if not fields:
        raise PreconditionError(f"{folder} has no tokenizer files; expected one of {', '.join(TOKENIZER_FILES)}")
    return hashlib.blake2b(encode(*fields), digest_size=16, person=b"sc-tokenizer").hexdigest()
