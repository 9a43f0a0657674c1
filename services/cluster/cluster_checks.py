"""What a deployment gets wrong most: rights in Redis, certificates, clocks, versions, weights, room, and open ports.

Each check looks, changes nothing, and says what is wrong, what comes of it, and what to do.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from cache_store.redis_registry import RedisRegistryReader
from cache_store.redis_session import REDIS_ERRORS, RedisSession
from cache_store.registry import PROTOCOL_VERSION, RegistryUnavailableError, WorkerRecord
from cache_store.tls_files import Component, tls_name
from services.certs.inspection import NotShownError, look
from services.cluster.findings import Finding, ok, problem, warning
from services.cluster.host_port import host_port
from services.cluster.redis_check import Severity, check_redis
from services.cluster.redis_roles import RedisRole
from services.tls import Trust

MAX_SKEW_S = 2.0
"""A record is up to half a second old, so clocks that differ by less look alike."""

RENEW_DAYS = 14.0
SHARED_MEMORY_BYTES = 96 << 20
"""Of Ray's object store, with what it takes beside."""

INSIDE_PORTS = {
    6379: "Redis, or Ray's GCS",
    6380: "Redis with TLS, or a node of Ray",
    7421: "the operator's API",
    7422: "the console",
    7423: "probes",
    8265: "Ray's dashboard, where anybody with its token runs programs",
    9464: "metrics",
    10001: "Ray's client port",
    52365: "Ray's agent",
}
_CONNECT_S = 1.0
_READ_S = 3.0


@dataclass(frozen=True, slots=True)
class Places:
    """Where the parts of a cluster are, as an operator reaches them."""

    redis_urls: Mapping[RedisRole, str] = field(repr=False)
    admin_address: str = ""
    tenant_address: str = ""
    trust: Trust | None = None
    """None: nothing is encrypted."""
    shared_memory: Path = Path("/dev/shm")  # noqa: S108 - where Ray has its object store


def check_cluster(places: Places) -> Iterator[Finding]:
    """All checks that an operator can make."""
    for role, url in places.redis_urls.items():
        yield from check_role(role, url)
    workers: list[WorkerRecord] = []
    if RedisRole.ROUTER in places.redis_urls:
        try:
            workers, store_unix_s = asyncio.run(_registry(places.redis_urls[RedisRole.ROUTER]))
        except (*REDIS_ERRORS, RegistryUnavailableError) as error:
            yield problem("workers", f"the registry cannot be read: {error}", "see what is said of redis above")
        else:
            yield from check_workers(workers)
            yield from check_clocks(workers, store_unix_s, time.time())
    yield from check_certificates(places, workers)
    yield check_shared_memory(places.shared_memory)


def check_role(role: RedisRole, url: str) -> Iterator[Finding]:
    """Rights of one role's user, its server, and whether the connection is encrypted."""
    name = f"redis as {role}"
    found = check_redis(url, role)
    for each in found:
        make = problem if each.severity is Severity.ERROR else warning
        yield make(name, f"{each.problem}: {each.why.rstrip('.')}", each.remedy)
    parts = urlsplit(url)
    if parts.username in (None, "", "default"):
        advice = f"give the {role} a user of its own, as `stemcache secrets` does"
        yield warning(name, "the URL names no user: who has one role's password has the rights of all", advice)
    if parts.scheme == "redis" and parts.hostname not in ("127.0.0.1", "::1", "localhost"):
        advice = "switch TLS on at the server and write rediss://"
        yield warning(name, "the connection is plain: passwords and tenants' data go over the network", advice)
    if not found:
        yield ok(name, "the server is fit and the user has its rights and no more")


def check_workers(workers: Sequence[WorkerRecord]) -> Iterator[Finding]:
    """Versions, and whether workers of one model have the same weights."""
    name = "workers"
    if not workers:
        advice = "look at the supervisors' logs, and at what is said of redis above"
        yield problem(name, "no worker is in the registry, so nothing is served", advice)
        return
    others = [each for each in workers if each.protocol_version != PROTOCOL_VERSION]
    for each in others:
        yield problem(
            "versions",
            f"{each.worker_id} speaks protocol version {each.protocol_version}, this is {PROTOCOL_VERSION}: routers of "
            "this version send it nothing",
            "go on with the upgrade, or go back: one version of routers for one of workers, as the runbook tells",
        )
    known = [each for each in workers if each not in others]
    if not others:
        yield ok("versions", f"{len(known)} workers speak protocol version {PROTOCOL_VERSION}")
    yield from _check_weights(known)


def _check_weights(workers: Sequence[WorkerRecord]) -> Iterator[Finding]:
    by_model: dict[str, dict[tuple[str, str], list[str]]] = defaultdict(lambda: defaultdict(list))
    for each in workers:
        by_model[each.model][bytes(each.kv_format).hex()[:12], each.tokenizer_digest[:12]].append(each.worker_id)
    for model, kinds in by_model.items():
        if len(kinds) == 1:
            yield ok("weights", f"all workers of {model} have the same weights, types and tokenizer")
            continue
        sides = "; ".join(", ".join(ids) for ids in kinds.values())
        yield problem(
            "weights",
            f"workers of {model} differ in weights, number types or tokenizer ({sides}): they answer differently, "
            "share no cache and cannot take over each other's requests",
            "copy one folder to all nodes and start those that differ anew",
        )


def check_clocks(workers: Sequence[WorkerRecord], store_unix_s: float, own_unix_s: float) -> Iterator[Finding]:
    """Against the clock of Redis, which all of them see."""
    name = "clocks"
    clocks: dict[str, float] = {each.worker_id: each.clock_unix_s for each in workers if each.clock_unix_s}
    clocks["this machine"] = own_unix_s
    wrong = {who: clock - store_unix_s for who, clock in clocks.items() if abs(clock - store_unix_s) > MAX_SKEW_S}
    for who, ahead_s in wrong.items():
        direction = "ahead of" if ahead_s > 0 else "behind"
        yield warning(
            name,
            f"{who} is {abs(ahead_s):.1f} s {direction} the Redis server: certificates and times to live end too soon "
            "or too late, and logs do not fit together",
            "run chrony or systemd-timesyncd there",
        )
    if not wrong:
        yield ok(name, f"{len(clocks)} clocks are within {MAX_SKEW_S:g} s of the Redis server's")


def check_certificates(places: Places, workers: Sequence[WorkerRecord]) -> Iterator[Finding]:
    """Whether each server shows one that is trusted, has the name that callers ask for, and lasts."""
    if places.trust is None:
        advice = "name certificates: STEMCACHE_TLS_CERT_FILE and others; `stemcache certs` makes some"
        yield warning("TLS", "no certificates are configured here: connections are taken to be plain", advice)
        return
    inside = [(places.admin_address, tls_name(Component.ROUTER), "routers of the operator's API")]
    inside += [(each.address, tls_name(Component.WORKER), "workers") for each in workers]
    if places.tenant_address:
        inside.append((places.tenant_address, _host_port(places.tenant_address)[0], "what tenants dial"))
    for address, name, whom in inside:
        if address:
            yield _check_certificate(address, name, whom, places.trust)
    for role, url in places.redis_urls.items():
        parts = urlsplit(url)
        if parts.scheme == "rediss" and parts.hostname:
            files = parse_qs(parts.query).get("ssl_ca_certs")
            trust = places.trust if files is None else Trust(Path(files[0]), places.trust.identity)
            address = f"{parts.hostname}:{parts.port or 6379}"
            yield _check_certificate(address, parts.hostname, f"redis as {role}", trust)


def _check_certificate(address: str, name: str, whom: str, trust: Trust) -> Finding:
    check = f"TLS of {address}"
    host, port = _host_port(address)
    try:
        shown = look(host, port, trust.authority, trust.identity)
    except NotShownError as error:
        advice = "give it a certificate of the authority that callers trust, and restart or renew it"
        return problem(check, f"{error}; callers refuse to talk to it", advice)
    days = shown.days_left(datetime.now(UTC))
    if not shown.fits(name):
        names = ", ".join(shown.names) or "none"
        advice = f"give it a certificate with the name {name}: stemcache certs DIR --name COMPONENT={name}"
        return problem(check, f"its certificate is for {names}, not for {name} ({whom}): callers refuse it", advice)
    if days < RENEW_DAYS:
        advice = "renew it; ports take the new file by themselves"
        return warning(check, f"its certificate ends in {days:.0f} days; from then on nobody talks to it", advice)
    return ok(check, f"trusted, for {name}, for {days:.0f} days")


def check_shared_memory(folder: Path) -> Finding:
    """Of this machine or container: run it where a Ray node runs."""
    name = "shared memory"
    try:
        status = os.statvfs(folder)
    except OSError as error:
        return problem(
            name, f"{folder} cannot be looked at ({error.strerror}): Ray does not start", "mount a tmpfs there"
        )
    size_bytes = status.f_blocks * status.f_frsize
    if size_bytes < SHARED_MEMORY_BYTES:
        return problem(
            name,
            f"{folder} has {size_bytes >> 20} MiB, Ray's object store needs {SHARED_MEMORY_BYTES >> 20}: it falls back "
            "to files, which are slow, or does not start",
            "give the container more: shm_size: 256m, or an emptyDir with medium Memory at /dev/shm",
        )
    return ok(name, f"{folder} has {size_bytes >> 20} MiB")


def check_reach(addresses: Sequence[str], routers: Sequence[str]) -> Iterator[Finding]:
    """From where tenants are: routers answer, and nothing of `addresses` (hosts, or host:port) does."""
    name = "reach"
    for router in routers:
        if not _answers(*_host_port(router)):
            yield problem(name, f"the router {router} cannot be reached from here", "let tenants in on its port")
    places = list(_inside(addresses))
    unknown = {host for host, _ in places if not _has_address(host)}
    for host in sorted(unknown):
        advice = "give the IP address that it has inside: docker inspect, or kubectl get pods -o wide"
        yield problem(name, f"{host} has no address here, so nothing could be tried there", advice)
    known = [(host, port) for host, port in places if host not in unknown]
    open_ports = [(host, port) for host, port in known if _answers(host, port)]
    for host, port in open_ports:
        yield problem(
            name,
            f"{host}:{port} answers ({INSIDE_PORTS.get(port, 'not for tenants')}): whoever is a tenant can try "
            "passwords and faults there",
            "put it into a network that tenants have no route to, or deny it: a NetworkPolicy, a firewall",
        )
    if not open_ports and not unknown:
        yield ok(
            name,
            f"none of the {len(known)} ports tried inside answers here; those that workers and Ray choose when they "
            "start were not tried",
        )


def _inside(addresses: Sequence[str]) -> Iterator[tuple[str, int]]:
    for address in addresses:
        if ":" in address and not _is_ip(address):
            yield host_port("inside", address)
        else:
            yield from ((address, port) for port in INSIDE_PORTS)


def _is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _has_address(host: str) -> bool:
    try:
        return bool(socket.getaddrinfo(host, None))
    except (OSError, UnicodeError):
        return False


def _answers(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), _CONNECT_S):
            return True
    except OSError:
        return False


def _host_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


async def _registry(url: str) -> tuple[list[WorkerRecord], float]:
    """Workers, and the time of the store, read one after the other."""
    session = RedisSession(url)
    try:
        workers = await RedisRegistryReader(session).workers()
        seconds, micros = await session.call(("TIME",), _READ_S)  # type: ignore[misc]  # a list of two
        return workers, int(seconds) + int(micros) / 1e6  # type: ignore[arg-type]
    finally:
        await session.close()
