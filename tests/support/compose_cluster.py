"""The cluster of infra/compose.yaml without a container engine, in namespaces of this machine, and two tenants outside.

Commands, variables, users, mounts and networks are those of the file; Valkey is the server on the PATH that has TLS.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from cache_store.tls_files import Component
from services.certs.folder import CertificateFolder, Step
from services.cluster.secret_files import TLS_FOLDER, SecretFiles
from tests.support.compose_file import Service, services
from tests.support.containers import USER, Bind, Container, Image, running_containers

PROFILE = "cpu"
TENANTS = ("acme", "globex")
READY_S = 300.0
_STAGES = (
    ("valkey",),
    ("ray-head",),
    ("ray-node-1", "ray-node-2"),
    ("supervisor-1", "supervisor-2", "router-1", "router-2"),
)
_SERVER = shutil.which("redis-server") or "redis-server"


@dataclass(frozen=True)
class ComposeCluster:
    """Containers by the names of the file, `operator`, and a container for each tenant."""

    containers: Mapping[str, Container]
    services: Mapping[str, Service]
    secrets: SecretFiles
    folder: Path

    @property
    def routers(self) -> str:
        """For clients, in order of preference."""
        return ",".join(f"{self.containers[name].addresses['tenants']}:7420" for name in ("router-1", "router-2"))

    def start_all(self) -> None:
        """In the order in which one needs the other."""
        for stage in _STAGES:
            self.start(*stage)

    def start(self, *names: str) -> None:
        """Starts containers side by side and waits until they are healthy."""
        for name in names:
            self.containers[name].start()
        deadline_s = time.monotonic() + READY_S
        for name in names:
            while not self.is_healthy(name):
                container = self.containers[name]
                tail = container.log.read_text(errors="replace")[-3_000:]
                assert container.status is None, f"{name} ended with {container.status}:\n{tail}"
                assert time.monotonic() < deadline_s, f"{name} is not healthy:\n{tail}"
                time.sleep(0.5)

    def is_healthy(self, name: str) -> bool:
        """By the health command of the file; of who has none, that its port answers."""
        command = self.services[name].health_command
        if not command:
            command = {
                "valkey": ["sh", "-c", "python -c 'import socket; socket.create_connection((\"127.0.0.1\", 6379), 2)'"],
                "ray-head": ["python", "-c", _CONNECT.format(host="ray-head", port=6379)],
            }.get(name, ["true"])
        return self.containers[name].run(command).returncode == 0

    def operate(self, *arguments: str) -> str:
        """A command of the operator."""
        done = self._operator(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def workers(self) -> list[dict[str, Any]]:
        """As the operator sees them, also where not all is well, which the exit status tells."""
        found: list[dict[str, Any]] = json.loads(self._operator("status", "--json").stdout)["workers"]
        return found

    def _operator(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        where = ["--admin-address", "router-1-inside:7421", "--admin-token-file", "/run/secrets/admin-token"]
        return self.containers["operator"].run(["stemcache", *arguments, *where])

    def fetch(self, url: str, token: str) -> tuple[int, str]:
        """Status and text of a page inside."""
        done = self.containers["operator"].run(["python", "-c", _FETCH, url], environment={"SHOWN": token})
        assert done.returncode == 0, done.stderr
        status, _, text = done.stdout.partition("\n")
        return int(status), text

    def ask(self, tenant: str, key: str, tokens: Sequence[int]) -> Any:
        """A request of a tenant from where tenants are."""
        ids = ",".join(map(str, tokens))
        done = self.containers[tenant].run(
            ["stemcache", "generate", "--address", self.routers, "--json", "--max-tokens", "8", "--token-ids", ids],
            environment={"STEMCACHE_API_KEY": key},
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


_FETCH = """
import os, sys, urllib.error, urllib.request
asked = urllib.request.Request(sys.argv[1], headers={"authorization": "Bearer " + os.environ["SHOWN"]})
try:
    with urllib.request.urlopen(asked, timeout=20) as answer:
        print(answer.status, answer.read().decode(), sep="\\n")
except urllib.error.HTTPError as error:
    print(error.code)
"""
_CONNECT = "import socket; socket.create_connection(({host!r}, {port}), 2)"


@contextmanager
def running_compose_cluster(folder: Path) -> Iterator[ComposeCluster]:
    """Everything runs and is healthy."""
    folder.chmod(0o755)
    secrets = SecretFiles(folder / "secrets")
    secrets.make("valkey:6379", TLS_FOLDER)
    certificates = CertificateFolder(folder / "certs")
    found = services({}, PROFILE) | {name: services({}, "operator")[name] for name in ("operator",)}
    images = [_image(each, secrets, certificates, folder) for each in found.values()]
    images += [_tenant(name, certificates) for name in TENANTS]
    for component in Component:
        (certificates.path / component).mkdir(parents=True, exist_ok=True)
    with running_containers(images) as containers:
        names = [address for name in ("router-1", "router-2") for address in containers[name].addresses.values()]
        certificates.write({Component.ROUTER: names, Component.REDIS: ["valkey"]}, timedelta(days=1), Step.KEEP)
        _give(folder)
        cluster = ComposeCluster(containers, found, secrets, folder)
        cluster.start_all()
        yield cluster


def _image(service: Service, secrets: SecretFiles, certificates: CertificateFolder, folder: Path) -> Image:
    binds = [Bind(secrets.path / name, f"/run/secrets/{name}") for name in service.secrets]
    scratch = []
    for mount in service.mounts:
        source = folder / "volumes" / Path(mount.source).name
        if mount.target == str(TLS_FOLDER):
            source = certificates.path / Path(mount.source).name
        source.mkdir(parents=True, exist_ok=True)
        binds.append(Bind(source, mount.target))
    if not any(bind.target == "/var/lib/stemcache" for bind in binds):
        scratch.append("/var/lib/stemcache")
    command = [_SERVER if word == "valkey-server" else word for word in service.command]
    return Image(service.name, command, service.environment, service.networks, binds, scratch)


def _tenant(name: str, certificates: CertificateFolder) -> Image:
    """Has the authority's certificate and nothing else."""
    authority = Bind(certificates.path / Component.ROUTER, "/run/authority")
    environment = {"STEMCACHE_TLS_CA_FILE": "/run/authority/ca.crt"}
    return Image(name, ["sleep", "infinity"], environment, {"tenants": [name]}, [authority])


def _give(folder: Path) -> None:
    """To the user of the containers."""
    for path in (folder, *folder.rglob("*")):
        if path != folder:
            os.chown(path, USER, USER)
