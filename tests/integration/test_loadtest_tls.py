"""Load on routers with certificates, which ask callers for theirs, as the command line's environment names them."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from cache_store.clock import SystemClock
from cache_store.tls_files import Component, TlsFiles
from services.certs.folder import CertificateFolder, Step
from services.cli.exit_codes import ExitCode
from services.client import ApiUnavailableError, AsyncStemcacheClient
from services.cluster.valkey import EmbeddedValkey
from services.loadtest.isolation.client_prober import client_prober
from services.loadtest.isolation.samples import Party
from services.loadtest.results_folder import read_run
from services.loadtest.stemcache_backend import StemcacheBackend
from services.tls import Trust, component_trust
from tests.support.redis_servers import server_named
from tests.support.router_host import (
    MODEL,
    eventually_async,
    new_tenant,
    router_settings,
    running,
    running_workers_of,
)
from tests.support.running_up import run_stemcache


@dataclasses.dataclass(frozen=True)
class Served:
    """A router that wants certificates, and a tenant's key."""

    address: str
    key: str
    files: TlsFiles

    def command(self, folder: Path) -> list[str]:
        """A short load."""
        flags = ["--num-prompts", "6", "--max-concurrency", "2", "--prefix-len", "32", "--suffix-len", "8"]
        flags += ["--output-len", "2", "--num-warmups", "1", "--request-timeout", "10s", "--data-dir", str(folder)]
        return ["loadtest", "run", "--address", self.address, "--key", self.key, *flags]


@pytest.fixture
async def served(request: pytest.FixtureRequest, valkey: EmbeddedValkey, tmp_path: Path) -> AsyncIterator[Served]:
    urls = server_named(request, "valkey").urls
    folder = CertificateFolder(tmp_path / "certs")
    folder.write({}, timedelta(days=1), Step.KEEP)
    own = folder.files(Component.ROUTER)
    key = await new_tenant(urls, "acme")
    settings = dataclasses.replace(router_settings(urls, tmp_path / "router"), public_tls=own)
    async with running_workers_of(urls, [{}]), running(settings, SystemClock()) as router:
        found = Served(router.address, key, folder.files(Component.OPERATOR))
        async with AsyncStemcacheClient(found.address, key, 10.0, trust=component_trust(found.files)) as client:
            await eventually_async(client.models)
        yield found


def certificates(files: TlsFiles) -> dict[str, str]:
    named = {"CA": files.authority, "CERT": files.certificate, "KEY": files.key}
    return {f"STEMCACHE_TLS_{name}_FILE": str(path) for name, path in named.items()}


async def test_a_run_shows_its_certificate(served: Served, tmp_path: Path) -> None:
    command = [*served.command(tmp_path), "--result-dir", str(tmp_path / "run")]
    found = await asyncio.to_thread(run_stemcache, *command, **certificates(served.files))
    assert found.returncode == ExitCode.OK, found.stderr
    assert read_run(tmp_path / "run").result.status_codes == {"OK": 6}


async def test_without_one_nothing_is_sent(served: Served) -> None:
    trusted = Trust(served.files.authority)
    backend = StemcacheBackend(served.address, served.key, MODEL, 5.0, trusted)
    try:
        with pytest.raises(ApiUnavailableError):
            await backend.model()
    finally:
        await backend.close()


async def test_the_isolation_test_asks_with_it_too(served: Served) -> None:
    keys = dict.fromkeys(Party, served.key)
    async with client_prober(served.address, keys, MODEL, component_trust(served.files)) as (prober, _):
        assert (await prober.ask(Party.LEFT, range(40))).prompt_tokens == 40
