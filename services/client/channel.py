"""How the clients reach a server: retry policy, deadlines, credential. Keeps no state.

Retries are gRPC's own, by service config: UNAVAILABLE only, before the first message of an answer, with growing
pauses. Of several routers the first that can be reached gets all calls, so that cancelling and attaching to a running
request meet the router that runs it; where it goes away, the next one gets them, retries included. They are
safe because what is retried is idempotent: a generation carries its request id, ending a pin twice is ending it once,
so is purging twice, everything else that is listed here only reads.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Sequence
from typing import TypeAlias

import grpc

from cache_store.tls_files import Component
from services.tls import Trust, name_option, server_name_option

CallMetadata: TypeAlias = tuple[tuple[str, str], ...]

GENERATION_TIMEOUT_S = 300.0
CALL_TIMEOUT_S = 20.0

_RETRIED: tuple[dict[str, str], ...] = (
    {"service": "stemcache.v1.InferenceService"},
    {"service": "stemcache.v1.UsageService"},
    {"service": "stemcache.v1.CacheService", "method": "LookupPrefix"},
    {"service": "stemcache.v1.CacheService", "method": "WarmPrefix"},
    {"service": "stemcache.v1.CacheService", "method": "UnpinPrefix"},
    {"service": "stemcache.v1.CacheService", "method": "ListPins"},
    {"service": "stemcache.v1.CacheService", "method": "PurgeCache"},
    {"service": "stemcache.admin.v1.ClusterService"},
    {"service": "stemcache.admin.v1.UsageService"},
    {"service": "stemcache.admin.v1.AdapterService", "method": "ListAdapters"},
    {"service": "stemcache.admin.v1.TenantAdminService", "method": "ListTenants"},
    {"service": "stemcache.admin.v1.TenantAdminService", "method": "ListApiKeys"},
    {"service": "stemcache.admin.v1.TenantAdminService", "method": "ExportTenants"},
    {"service": "stemcache.admin.v1.TenantAdminService", "method": "PurgeTenantCache"},
)

_RETRY_POLICY = {
    "maxAttempts": 4,
    "initialBackoff": "0.2s",
    "maxBackoff": "2s",
    "backoffMultiplier": 2.0,
    "retryableStatusCodes": ["UNAVAILABLE"],
}


def channel_options() -> list[tuple[str, str | int]]:
    """Options for a channel, sync or async."""
    config = {"methodConfig": [{"name": list(_RETRIED), "retryPolicy": _RETRY_POLICY}]}
    return [
        ("grpc.service_config", json.dumps(config)),
        ("grpc.enable_retries", 1),
        ("grpc.primary_user_agent", "stemcache-python"),
        ("grpc.keepalive_time_ms", 30_000),
    ]


def channel_target(address: str) -> str:
    """What a channel is opened to: `address` is host:port, or several of them with commas between, in order of
    preference. Raises ValueError where several are not all IPv4 or all IPv6 addresses."""
    addresses = [part.strip() for part in address.split(",")]
    if len(addresses) == 1:
        return address
    versions = {_ip_version(each) for each in addresses}
    if len(versions) > 1 or None in versions:
        raise ValueError(
            f"{address!r} names several routers, which have to be IP addresses of one version, each with its port; "
            "a DNS name that has several addresses is given alone, as dns:///name:port"
        )
    return f"ipv{versions.pop()}:{','.join(addresses)}"


def _ip_version(address: str) -> int | None:
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit():
        return None
    try:
        ip = ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return None
    return ip.version if ip.version == 4 or host.startswith("[") else None


def sync_channel(address: str, trust: Trust | None, named: Component | None = None) -> grpc.Channel:
    """A channel to `address`, plain without `trust`; `named`: which component has to answer, whatever the address."""
    if trust is None:
        return grpc.insecure_channel(channel_target(address), options=channel_options())
    options = [*channel_options(), *([name_option(named)] if named else _expected_name(address, trust))]
    return grpc.secure_channel(channel_target(address), trust.credentials(), options=options)


def async_channel(
    address: str, trust: Trust | None, options: Sequence[tuple[str, str | int]] | None = None
) -> grpc.aio.Channel:
    """The same for an event loop; `options`: of the channel, instead of the usual ones."""
    usual = channel_options() if options is None else options
    if trust is None:
        return grpc.aio.insecure_channel(channel_target(address), options=usual)
    options = [*usual, *_expected_name(address, trust)]
    return grpc.aio.secure_channel(channel_target(address), trust.credentials(), options=options)


def _expected_name(address: str, trust: Trust) -> list[tuple[str, str]]:
    """gRPC would look for all of several addresses, commas included, in the certificate."""
    if trust.server_name:
        return [server_name_option(trust.server_name)]
    first, *others = (part.strip() for part in address.split(","))
    return [server_name_option(first.rpartition(":")[0].strip("[]"))] if others else []


def credential_metadata(credential: str) -> CallMetadata:
    """Metadata that carries an API key or the operator's token. Raises ValueError for one that no server gave out."""
    if not credential or not credential.isascii() or not credential.isprintable() or " " in credential:
        raise ValueError("the credential is empty or has characters that no key has; was it copied whole?")
    return (("authorization", f"Bearer {credential}"),)


def operator_metadata(token: str) -> CallMetadata:
    """What shows that a tenant's call is the operator's too; nothing without a token."""
    return (("stemcache-operator-token", token),) if token else ()
