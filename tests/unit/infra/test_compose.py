"""compose.yaml and the Dockerfile without an engine: the programs understand what they are told, nobody has rights."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from cache_store.errors import InvalidRequestError
from tests.support import compose_file
from tests.support.compose_file import Service
from tests.support.told_processes import ROOT, known_variables, understood

ENVIRON = {"STEMCACHE_MODEL": "llama=/models/llama", "STEMCACHE_RUNNER": "paged", "STEMCACHE_ROUTER_MODELS": ""}
DOCKERFILE = (ROOT / "infra" / "Dockerfile").read_text()
BIN = Path(sys.executable).parent


def services() -> list[Service]:
    found: dict[str, Service] = {}
    for profile in ("cpu", "gpu", "operator", "monitoring"):
        found |= compose_file.services(ENVIRON, profile)
    return list(found.values())


@pytest.mark.parametrize("service", services(), ids=lambda service: service.name)
def test_the_programs_understand_what_they_are_told(service: Service, tmp_path: Path) -> None:
    understood(service.command, service.environment, tmp_path)
    if service.health_command:
        understood(service.health_command, {}, tmp_path)


@pytest.mark.parametrize("service", services(), ids=lambda service: service.name)
def test_services_have_no_rights_and_a_root_that_they_cannot_write_to(service: Service) -> None:
    assert service.raw["read_only"] is True
    assert service.raw["user"] == "10001:10001"
    assert service.raw["cap_drop"] == ["ALL"]
    assert service.raw["security_opt"] == ["no-new-privileges:true"]


def test_tenants_reach_routers_and_nothing_else() -> None:
    outside = {service.name for service in services() if "tenants" in service.networks or service.raw.get("ports")}
    assert outside == {"router-1", "router-2"}
    assert compose_file.read(ENVIRON)["networks"]["inside"] == {"internal": True}
    for service in services():
        if service.name in outside:
            assert [port.rpartition(":")[2] for port in service.raw["ports"]] == ["7420"]
            assert not service.environment["STEMCACHE_ADMIN_LISTEN"].startswith(("0.0.0.0", "[::]"))


def test_processes_show_metrics_where_tenants_are_not() -> None:
    for service in services():
        if service.command[:2] != ["python", "-m"]:
            continue
        listen = service.environment["STEMCACHE_METRICS_LISTEN"]
        assert service.environment["STEMCACHE_METRICS_TOKEN_FILE"] == "/run/secrets/metrics-token"
        if "tenants" in service.networks:
            assert listen in [f"{name}:9464" for name in service.networks["inside"]]
        assert listen.endswith(":9464")
    scraped = (ROOT / "infra" / "monitoring" / "compose.yml").read_text()
    for service in services():
        if service.name.startswith(("supervisor", "router")):
            assert re.search(rf"\b{service.name}\b", scraped), service.name


def test_a_model_for_the_gpu_is_asked_for_and_the_others_need_none(tmp_path: Path) -> None:
    """An engine fills in variables of all profiles, whichever is started: none may end that."""
    assert compose_file.read({})
    supervisor = compose_file.services({}, "gpu")["supervisor-gpu"]
    with pytest.raises(InvalidRequestError, match="STEMCACHE_MODEL"):
        understood(supervisor.command, supervisor.environment, tmp_path)


def test_volumes_lie_where_the_user_of_the_containers_may_write() -> None:
    """An engine gives a named volume the owner of the image's folder; only our own image's are that user's."""
    [made] = re.findall(r"install -d -o 10001 -g 10001 -m 0700 (.*?)$", DOCKERFILE, re.M)
    for service in services():
        for mount in service.mounts:
            if not mount.is_read_only and "/" not in mount.source:
                assert service.raw["image"].startswith("stemcache:"), service.name
                assert mount.target in made.split(), service.name


def test_secrets_come_as_files() -> None:
    for service in services():
        secret = [name for name in service.environment if re.search(r"PASSWORD|_KEY$|TOKEN$|REDIS_URL$", name)]
        assert secret == [], service.name


def test_variables_of_the_image_are_known_and_none_is_a_secret() -> None:
    words = re.findall(r"\b([A-Za-z_]+)=", " ".join(re.findall(r"^(?:ENV|ARG) (.*(?:\\\n.*)*)", DOCKERFILE, re.M)))
    ours = {word for word in words if word.startswith("STEMCACHE_")}
    assert ours <= known_variables() | {"STEMCACHE_HOME", "STEMCACHE_CACHE_DIR"}
    assert not [word for word in words if re.search(r"KEY|TOKEN|PASSWORD|SECRET", word)]


def test_the_image_runs_the_router_as_nobody() -> None:
    assert re.search(r"^USER 10001:10001$", DOCKERFILE, re.M)
    command = re.findall(r'^CMD \["(.*)"\]$', DOCKERFILE, re.M)
    assert command == ['python", "-m", "services.router']
    assert DOCKERFILE.index("USER 10001") < DOCKERFILE.index("FROM runtime AS cpu")


def test_nothing_reaches_the_builder_but_what_is_named() -> None:
    ignore = (ROOT / "infra" / "Dockerfile.dockerignore").read_text().splitlines()
    rules = [line for line in ignore if line and not line.startswith("#")]
    assert rules[0] == "*"
    copied = {word for line in re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE, re.M) for word in line.split()}
    assert {f"!{path}" for path in copied} == {rule for rule in rules if rule.startswith("!")}
    assert all((ROOT / path).exists() for path in copied)


def test_the_linters_have_nothing_to_say() -> None:
    for command in (
        [BIN / "hadolint", "infra/Dockerfile"],
        [BIN / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", "infra/compose.yaml"],
    ):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
