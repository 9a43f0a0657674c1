"""Encrypted connections between router, workers, operator and tenants: who is let in, and what the others are told."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from structlog.testing import capture_logs

from cache_store.clock import SystemClock
from cache_store.tls_files import Component, TlsFiles
from services.certs.folder import CertificateFolder, Step
from services.client import (
    AdminClient,
    ApiError,
    ApiUnavailableError,
    AsyncStemcacheClient,
    GenerationRequest,
    Sampling,
    Tokens,
)
from services.cluster.redis_roles import RoleUrls
from services.cluster.valkey import EmbeddedValkey
from services.router.app import Router
from services.router.readiness import SERVICE
from services.settings import Address
from services.tls import Trust, component_trust, name_option
from tests.support.redis_servers import server_named
from tests.support.router_host import (
    ADMIN_TOKEN,
    MODEL,
    eventually_async,
    new_tenant,
    router_settings,
    running,
    start_worker,
)
from worker.host import WorkerHost

DAY = timedelta(days=1)
PROMPT = Tokens(tuple(range(64)))


@pytest.fixture
def urls(request: pytest.FixtureRequest, valkey: EmbeddedValkey) -> RoleUrls:
    return server_named(request, "valkey").urls


@pytest.fixture
def folder(tmp_path: Path) -> CertificateFolder:
    made = CertificateFolder(tmp_path / "certs")
    made.write({}, DAY, Step.KEEP)
    return made


@dataclasses.dataclass(frozen=True)
class System:
    """A router and a worker with certificates, and a tenant's key."""

    folder: CertificateFolder
    router: Router
    worker: WorkerHost
    key: str

    async def answer(self, trust: Trust | None) -> int:
        """Tokens that a call brings."""
        async with AsyncStemcacheClient(self.router.address, self.key, 10.0, trust=trust) as client:
            request = GenerationRequest(PROMPT, Sampling(max_tokens=4, ignore_eos=True), MODEL)
            return (await client.generate(request)).usage.completion_tokens

    async def health(self) -> int:
        """What probes are told."""
        assert self.router.health_address is not None
        async with grpc.aio.insecure_channel(self.router.health_address) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            response = await stub.Check(health_pb2.HealthCheckRequest(service=SERVICE), timeout=5.0)
        return int(response.status)

    async def becomes_ready(self) -> None:
        """Workers are in the registry, whether or not the router can call them."""
        await eventually_async(self._serves)

    async def _serves(self) -> bool:
        return await self.health() == health_pb2.HealthCheckResponse.SERVING

    @property
    def tenant_trust(self) -> Trust:
        return Trust(self.folder.files(Component.ROUTER).authority)


async def start(
    urls: RoleUrls, tmp_path: Path, folder: CertificateFolder, stack: AsyncExitStack, worker_files: TlsFiles | None
) -> System:
    own = folder.files(Component.ROUTER)
    settings = dataclasses.replace(
        router_settings(urls, tmp_path / "router"),
        tls=own,
        public_tls=dataclasses.replace(own, authority=None),
        health_listen=Address("127.0.0.1:0"),
    )
    key = await new_tenant(urls, "acme")
    worker = await start_worker(urls, "worker-0", tls=worker_files)
    stack.push_async_callback(worker.stop)
    router = await stack.enter_async_context(running(settings, SystemClock()))
    system = System(folder, router, worker, key)
    await system.becomes_ready()
    return system


@pytest.fixture
async def system(urls: RoleUrls, tmp_path: Path, folder: CertificateFolder) -> AsyncIterator[System]:
    async with AsyncExitStack() as stack:
        yield await start(urls, tmp_path, folder, stack, folder.files(Component.WORKER))


def strangers(tmp_path: Path) -> CertificateFolder:
    other = CertificateFolder(tmp_path / "strangers")
    other.write({}, DAY, Step.KEEP)
    return other


async def test_all_edges_are_encrypted_and_serve(system: System) -> None:
    assert await system.answer(system.tenant_trust) == 4
    with AdminClient(system.router.admin_address, ADMIN_TOKEN, trust=operator(system.folder)) as admin:
        status = await asyncio.to_thread(admin.status)
    assert [worker.worker_id for worker in status.workers] == ["worker-0"]


async def test_of_several_routers_the_first_ones_name_counts_unless_another_is_given(system: System) -> None:
    several = f"127.0.0.1:1,{system.router.address}"
    request = GenerationRequest(PROMPT, Sampling(max_tokens=4, ignore_eos=True), MODEL)
    named = dataclasses.replace(system.tenant_trust, server_name="router.stemcache.internal")
    for trust in (system.tenant_trust, named):
        async with AsyncStemcacheClient(several, system.key, 10.0, trust=trust) as client:
            assert (await client.generate(request)).usage.completion_tokens == 4
    wrong = dataclasses.replace(system.tenant_trust, server_name="api.example.com")
    async with AsyncStemcacheClient(several, system.key, 10.0, trust=wrong) as client:
        with pytest.raises(ApiUnavailableError):  # which of the two addresses its text is about is gRPC's choice
            await client.generate(request)


async def test_a_tenant_who_speaks_plainly_or_trusts_another_authority_is_told(system: System, tmp_path: Path) -> None:
    with pytest.raises(ApiUnavailableError):
        await system.answer(None)
    with pytest.raises(ApiUnavailableError, match="CERTIFICATE_VERIFY_FAILED"):
        await system.answer(Trust(strangers(tmp_path).files(Component.ROUTER).authority))


def operator(folder: CertificateFolder) -> Trust:
    return component_trust(folder.files(Component.OPERATOR))


@pytest.mark.parametrize("who", ["nobody", "stranger", "plain"])
async def test_the_admin_port_wants_a_certificate_of_its_authority(system: System, tmp_path: Path, who: str) -> None:
    authority = system.folder.files(Component.OPERATOR).authority
    stranger = dataclasses.replace(strangers(tmp_path).files(Component.OPERATOR), authority=authority)
    trust = {"nobody": Trust(authority), "stranger": component_trust(stranger), "plain": None}[who]
    assert await reaches(system.router.admin_address, operator(system.folder), Component.ROUTER)
    assert not await reaches(system.router.admin_address, trust, Component.ROUTER)


async def test_the_operator_asks_for_the_routers_name_whatever_the_address(system: System) -> None:
    worker = system.worker.address
    with (
        AdminClient(worker, ADMIN_TOKEN, trust=operator(system.folder)) as admin,
        pytest.raises(ApiUnavailableError, match="Hostname Verification Check failed"),
    ):
        await asyncio.to_thread(admin.status)


@pytest.mark.parametrize("who", ["nobody", "stranger", "plain"])
async def test_a_worker_lets_nobody_in_without_a_certificate_of_its_authority(
    system: System, tmp_path: Path, who: str
) -> None:
    authority = system.folder.files(Component.WORKER).authority
    stranger = dataclasses.replace(strangers(tmp_path).files(Component.ROUTER), authority=authority)
    trust = {"nobody": Trust(authority), "stranger": component_trust(stranger), "plain": None}[who]
    assert await reaches(
        system.worker.address, component_trust(system.folder.files(Component.ROUTER)), Component.WORKER
    )
    assert not await reaches(system.worker.address, trust, Component.WORKER)


async def reaches(address: str, trust: Trust | None, named: Component) -> bool:
    """Whether anybody there answers a call, be it by refusing it."""
    options = [name_option(named)]
    channel = (
        grpc.aio.insecure_channel(address)
        if trust is None
        else grpc.aio.secure_channel(address, trust.credentials(), options=options)
    )
    async with channel:
        try:
            await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=5.0)
        except grpc.aio.AioRpcError as error:
            return error.code() is grpc.StatusCode.UNAUTHENTICATED
    return True


@pytest.mark.parametrize("who", ["another component", "a stranger", "plain"])
async def test_a_worker_that_cannot_show_its_name_gets_no_requests(
    urls: RoleUrls, tmp_path: Path, folder: CertificateFolder, who: str
) -> None:
    """It is in the registry all the same: who may write there is not yet a worker."""
    files = {
        "another component": folder.files(Component.REDIS),
        "a stranger": strangers(tmp_path).files(Component.WORKER),
        "plain": None,
    }[who]
    async with AsyncExitStack() as stack:
        system = await start(urls, tmp_path, folder, stack, files)
        with capture_logs() as logs, pytest.raises(ApiUnavailableError):
            await system.answer(system.tenant_trust)
        refusals = [each for each in logs if each["event"] == "worker.tls_refused"]
        assert refusals
        assert refusals[0]["log_level"] == "error"


async def test_renewed_certificates_are_taken_with_the_next_handshake(system: System) -> None:
    """The authority is exchanged step by step, nobody is started anew, and the old one is worth nothing at the end."""
    old = (system.folder.path / "ca.crt").read_bytes()
    for step in (Step.ANNOUNCE, Step.SWITCH, Step.RETIRE):
        system.folder.write({}, DAY, step)
        assert await system.answer(system.tenant_trust) == 4
        assert await reaches(
            system.worker.address, component_trust(system.folder.files(Component.ROUTER)), Component.WORKER
        )
    kept = system.folder.path / "kept.crt"
    kept.write_bytes(old)
    with pytest.raises(ApiUnavailableError, match="CERTIFICATE_VERIFY_FAILED"):
        await system.answer(Trust(kept))


async def test_a_tenant_may_be_asked_for_a_certificate(
    urls: RoleUrls, tmp_path: Path, folder: CertificateFolder
) -> None:
    settings = dataclasses.replace(
        router_settings(urls, tmp_path / "router"), public_tls=folder.files(Component.ROUTER)
    )
    async with running(settings, SystemClock()) as router:
        authority = folder.files(Component.OPERATOR).authority
        assert await reaches(router.address, component_trust(folder.files(Component.OPERATOR)), Component.ROUTER)
        assert not await reaches(router.address, Trust(authority), Component.ROUTER)


async def test_the_port_for_probes_has_health_and_nothing_else(system: System) -> None:
    assert system.router.health_address is not None
    async with AsyncStemcacheClient(system.router.health_address, system.key, 5.0) as client:
        with pytest.raises(ApiError) as caught:
            await client.generate(GenerationRequest(PROMPT))
    assert caught.value.code is grpc.StatusCode.UNIMPLEMENTED
