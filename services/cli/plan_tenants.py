"""Quotas out of a file, for tenants that may not exist yet: a short form, or what `tenants list --json` prints."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path

from cache_store.errors import InvalidRequestError
from cache_store.quota import TenantQuota, TierShare
from cache_store.tier_kind import TierKind
from services.cli.quota import share

_FIELDS = {"min", "max", "strict", "weight", "max_pinned"}
_HELP = (
    'write {"acme": {"min": "25%", "max": "50%"}, "globex": {"strict": "20%"}}, or give what `stemcache tenants list '
    "--json` prints"
)


def read_tenants(file: Path) -> dict[str, TenantQuota]:
    """By name. Raises InvalidRequestError."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise _refusal(f"{file} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise _refusal(f"{file} is no JSON: {error}; {_HELP}") from error
    if isinstance(content, list):
        return {_listed_name(file, each): _listed(file, each) for each in content}
    if not isinstance(content, dict):
        raise _refusal(f"{file} holds no quotas; {_HELP}")
    return {name: _quota(f"{file}: {name}", each) for name, each in content.items()}


def _quota(where: str, content: object) -> TenantQuota:
    if not isinstance(content, dict) or set(content) - _FIELDS:
        raise _refusal(f"{where}: {content!r} is no quota; it may have {', '.join(sorted(_FIELDS))}; {_HELP}")
    low, high = content.get("min", 0.0), content.get("max", 1.0)
    if "strict" in content:
        if set(content) & {"min", "max"}:
            raise _refusal(f"{where}: strict sets min and max at once; leave them out, or strict")
        low = high = content["strict"]
    part = TierShare(_share(where, low), _share(where, high))
    weight = content.get("weight", 1.0)
    if isinstance(weight, bool) or not isinstance(weight, int | float):
        raise _refusal(f"{where}: weight is {weight!r}; it is a number, usually 1")
    return TenantQuota({TierKind.DEVICE: part}, float(weight), _share(where, content.get("max_pinned", 0.1)))


def _listed(file: Path, content: Mapping[str, object]) -> TenantQuota:
    quota = content.get("quota")
    tiers = quota.get("tiers") if isinstance(quota, dict) else None
    if not isinstance(quota, dict) or not isinstance(tiers, list):
        raise _refusal(f"{file}: {content['name']} has no quota; {_HELP}")
    device = next((each for each in tiers if isinstance(each, dict) and each.get("tier") == str(TierKind.DEVICE)), {})
    fields = {name: value for name, value in {**quota, **device}.items() if name in _FIELDS}
    return _quota(f"{file}: {content['name']}", fields)


def _listed_name(file: Path, content: object) -> str:
    if not isinstance(content, dict) or not isinstance(content.get("name"), str):
        raise _refusal(f"{file} lists something without a name; {_HELP}")
    return str(content["name"])


def _share(where: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise _refusal(f"{where}: {value!r} is no share; write 25% or 0.25")
    try:
        return share(str(value))
    except argparse.ArgumentTypeError as error:
        raise _refusal(f"{where}: {error}") from None


def _refusal(message: str) -> InvalidRequestError:
    return InvalidRequestError("tenants", message)
