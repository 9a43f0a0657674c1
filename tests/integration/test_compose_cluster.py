"""The cluster of compose.yaml in namespaces of this machine: two Ray nodes, two routers, Valkey with TLS, two tenants.

Each service is the file's own command under the file's own variables, as user 10001 on a root that it cannot write to.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from services.cluster.redis_roles import RedisRole
from tests.support.compose_cluster import TENANTS, ComposeCluster, running_compose_cluster
from tests.support.containers import NOT_HERE, USER, can_run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not can_run(), reason=NOT_HERE),
]

PROMPT = range(1_000, 1_100)
_SCAN = """
import json, socket, sys
found = []
for host in sys.argv[1:]:
    for port in range(1, 65536):
        with socket.socket() as knock:
            knock.settimeout(1.0)
            if knock.connect_ex((host, port)) == 0:
                found.append([host, port])
print(json.dumps(found))
"""
_NEAR = """
import socket, sys
for host in sys.argv[1:]:
    try:
        socket.create_connection((host, 6379), 2.0)
    except OSError as error:
        print(host, error.errno)
    else:
        sys.exit(host + " answers")
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ComposeCluster]:
    with running_compose_cluster(tmp_path_factory.mktemp("compose")) as running:
        yield running


@pytest.fixture(scope="module")
def keys(cluster: ComposeCluster) -> dict[str, str]:
    """A key of each tenant."""
    made = {}
    for tenant in TENANTS:
        cluster.operate("tenants", "create", tenant)
        made[tenant] = cluster.operate("tenants", "keys", "create", tenant)
    return made


def test_one_tenant_hits_where_the_other_misses(cluster: ComposeCluster, keys: dict[str, str]) -> None:
    """What the demo shows: a cold answer, a warm one, another tenant's that is cold and the same."""
    cold, warm = (cluster.ask("acme", keys["acme"], PROMPT) for _ in range(2))
    other = cluster.ask("globex", keys["globex"], PROMPT)
    assert [each["usage"]["cached_tokens"] for each in (cold, warm, other)] == [0, 96, 0]
    texts = [each["completions"][0]["token_ids"] for each in (cold, warm, other)]
    assert texts[0] == texts[1] == texts[2]
    assert {worker for worker in ("worker-1", "worker-2") if worker in cluster.operate("status")} == {
        "worker-1",
        "worker-2",
    }


def test_processes_have_no_rights_and_write_nowhere_else(cluster: ComposeCluster) -> None:
    for name in cluster.services:
        container = cluster.containers[name]
        for pid in container.pids:
            status = Path(f"/proc/{pid}/status").read_text()
            assert re.search(rf"^Uid:\t{USER}\t{USER}\t{USER}\t{USER}$", status, re.M), name
            assert re.search(r"^CapEff:\t0+$", status, re.M), name
            assert re.search(r"^NoNewPrivs:\t1$", status, re.M), name
        assert container.run(["touch", "/etc/here"]).returncode != 0


@pytest.mark.nightly  # all ports of three addresses
def test_from_where_tenants_are_only_routers_answer(cluster: ComposeCluster) -> None:
    """All ports of all addresses in the tenants' network; into the other one there is no way."""
    acme = cluster.containers["acme"]
    near = sorted({each.addresses["tenants"] for each in cluster.containers.values() if "tenants" in each.addresses})
    routers = {cluster.containers[name].addresses["tenants"] for name in ("router-1", "router-2")}
    own = acme.addresses["tenants"]
    done = acme.run(["python", "-c", _SCAN, *(host for host in near if host != own)], timeout_s=300)
    assert done.returncode == 0, done.stderr
    assert sorted(map(tuple, json.loads(done.stdout))) == sorted((router, 7420) for router in routers)
    inside = sorted({each.addresses["inside"] for each in cluster.containers.values() if "inside" in each.addresses})
    assert len(inside) >= 8
    done = acme.run(["python", "-c", _NEAR, *inside])
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("101") == len(inside), "no route to the network inside"
    places = [word for host in inside for word in ("--inside", host)]
    command = ["stemcache", "doctor", "--cluster", *places, "--address", f"{min(routers)}:7420"]
    doctor = acme.run(command, timeout_s=200)
    assert doctor.returncode == 0, doctor.stdout


def test_each_process_shows_metrics_inside_to_who_has_the_token(cluster: ComposeCluster) -> None:
    """Routers, supervisors and workers; a router names itself and all workers."""
    token = cluster.secrets.metrics_token.read_text().strip()
    places = {
        "router": [f"{name}-inside:9464" for name in ("router-1", "router-2")],
        "supervisor": [f"{name}:9464" for name in ("supervisor-1", "supervisor-2")],
        "worker": [f"{cluster.containers[name].addresses['inside']}:9464" for name in ("ray-node-1", "ray-node-2")],
    }
    shown = {
        "router": "stemcache_workers 2",
        "supervisor": "stemcache_ray_head_answers 1",
        "worker": "stemcache_blocks{",
    }
    for role, addresses in places.items():
        for address in addresses:
            assert cluster.fetch(f"http://{address}/metrics", "")[0] == 401, address
            status, text = cluster.fetch(f"http://{address}/metrics", token)
            assert status == 200, address
            assert shown[role] in text, address
    for router in places["router"]:
        groups = json.loads(cluster.fetch(f"http://{router}/targets", token)[1])
        found = {(group["labels"]["role"], target) for group in groups for target in group["targets"]}
        assert found == {("router", router), *(("worker", each) for each in places["worker"])}


def test_no_secret_is_seen_in_process_lists_or_logs(cluster: ComposeCluster, keys: dict[str, str]) -> None:
    files = cluster.secrets
    tokens = (files.master_key, files.admin_token, files.ray_token, files.metrics_token)
    secrets = {path.read_text().strip() for path in tokens}
    secrets |= {urlsplit(files.redis_url(role).read_text()).password or "" for role in RedisRole}
    secrets |= set(keys.values())
    assert "" not in secrets
    seen = []
    for name, container in cluster.containers.items():
        texts = {"log": container.log.read_bytes()} if container.log.exists() else {}
        for pid in container.pids:
            texts[f"command of {pid}"] = Path(f"/proc/{pid}/cmdline").read_bytes()
            texts[f"variables of {pid}"] = Path(f"/proc/{pid}/environ").read_bytes()
        for pid in container.pids[:1]:
            ray = Path(f"/proc/{pid}/root/tmp/ray")
            texts |= (
                {str(path): path.read_bytes() for path in ray.rglob("logs/*") if path.is_file()} if ray.exists() else {}
            )
        seen += [(name, where) for where, text in texts.items() for secret in secrets if secret.encode() in text]
    assert seen == []


@pytest.mark.nightly  # minutes
def test_a_restart_of_each_part_fails_no_request(cluster: ComposeCluster, keys: dict[str, str]) -> None:
    """One after the other, under load of both tenants: Ray's head, routers, Valkey, workers, Ray nodes."""
    command = ["python", "-m", "tests.support.tenant_load", cluster.routers]
    loads = {
        tenant: cluster.containers[tenant].popen(command, {"STEMCACHE_API_KEY": keys[tenant]}) for tenant in TENANTS
    }
    time.sleep(5)
    workers = _incarnations(cluster)
    _restart(cluster, "ray-head")
    assert _incarnations(cluster) == workers, "workers go on without the head of Ray, and with its next one"
    for part in ("router-1", "router-2", "valkey", "supervisor-1", "supervisor-2"):
        _restart(cluster, part)
    for node in ("ray-node-1", "ray-node-2"):
        supervisor = _supervisor_of(cluster, node)
        assert cluster.containers[supervisor].stop() == 0
        _restart(cluster, node)
        cluster.start(supervisor)
    for tenant, load in loads.items():
        load.terminate()
        out, _ = load.communicate(timeout=120)
        result = json.loads(out.splitlines()[-1])
        assert result["failures"] == [], tenant
        assert result["done"] > 200, tenant


def _restart(cluster: ComposeCluster, part: str) -> None:
    cluster.containers[part].stop()
    cluster.start(part)
    time.sleep(2)


def _incarnations(cluster: ComposeCluster) -> dict[str, str]:
    """Of each worker; another one for each start."""
    return {each["worker_id"]: each["incarnation"] for each in cluster.workers()}


def _supervisor_of(cluster: ComposeCluster, node: str) -> str:
    """Who keeps the worker that Ray placed on a node."""
    host = cluster.containers[node].addresses["inside"]
    [worker] = [each["worker_id"] for each in cluster.workers() if each["address"].rpartition(":")[0] == host]
    return str(worker).replace("worker", "supervisor")
