"""The text of API keys: `sc-<key id>-<secret>`, base32 in lower case, 80 and 256 random bits.

Only a hash of the secret is kept. A plain fast hash is enough: with 256 random bits there is nothing to guess, so the
slowness that protects passwords would only slow down every call. The hash covers the characters as sent, hence one key
has one text.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass, field

from cache_store.domain import TenantId
from cache_store.encoding import encode
from services.tenants.model import ApiKey, KeyId

_ID_BYTES = 10
_SECRET_BYTES = 32
_TEXT = re.compile(r"sc-([a-z2-7]{16})-([a-z2-7]{52})", re.ASCII)


@dataclass(frozen=True, slots=True)
class ParsedKey:
    """A key as a caller sent it."""

    key_id: KeyId
    secret: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class NewApiKey:
    """A key just made. `text` exists here and at its user's, nowhere else."""

    key: ApiKey
    text: str = field(repr=False)


def new_api_key(tenant: TenantId, now_unix_s: float) -> NewApiKey:
    """A fresh key of `tenant`."""
    key_id, secret = KeyId(_random_text(_ID_BYTES)), _random_text(_SECRET_BYTES)
    key = ApiKey(key_id, tenant, secret_hash(key_id, secret), now_unix_s, revoked=False)
    return NewApiKey(key, f"sc-{key_id}-{secret}")


def parse(text: str) -> ParsedKey | None:
    """The two parts of a key; None where the text is no key."""
    match = _TEXT.fullmatch(text)
    return ParsedKey(KeyId(match[1]), match[2]) if match else None


def secret_hash(key_id: KeyId, secret: str) -> bytes:
    """32 bytes kept instead of the secret."""
    return hashlib.blake2b(encode(key_id, secret), digest_size=32, person=b"sc-api-key").digest()


def matches(parsed: ParsedKey, expected_hash: bytes) -> bool:
    """Whether the secret is the right one, in constant time."""
    return hmac.compare_digest(secret_hash(parsed.key_id, parsed.secret), expected_hash)


def _random_text(num_bytes: int) -> str:
    return base64.b32encode(secrets.token_bytes(num_bytes)).decode("ascii").rstrip("=").lower()
