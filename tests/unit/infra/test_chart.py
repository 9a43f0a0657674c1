"""The Helm chart without a cluster: what it renders is what the programs understand, and wrong values are refused."""

from __future__ import annotations

import base64
import copy
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import helm_python
import pytest

from services.cluster.redis_roles import RedisRole, acl_rules
from services.tenants.master_key import from_value
from tests.support.chart import CHART, SMALL, lint_chart, of_kind, pods, variables
from tests.support.told_processes import understood

EXAMPLES = lint_chart().examples()


@pytest.fixture(scope="module")
def rendered() -> dict[str, list[dict[str, Any]]]:
    return {name: lint_chart().render(values) for name, values in EXAMPLES.items()}


def leaves(schema: dict[str, Any], path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], dict[str, Any]]]:
    found = []
    for name, each in schema.get("properties", {}).items():
        found.append(((*path, name), each))
        found += leaves(each, (*path, name))
    return found


SCHEMA = json.loads((CHART / "values.schema.json").read_text())


def test_the_least_that_has_to_be_given_is_enough() -> None:
    assert of_kind(lint_chart().render(SMALL), "Deployment")


def test_every_value_is_explained() -> None:
    unexplained = [path for path, each in leaves(SCHEMA) if len(path) < 4 and "description" not in each]
    assert [path for path in unexplained if path[-1] != "name"] == []


def test_every_default_has_its_schema() -> None:
    known = {path for path, _ in leaves(SCHEMA)}
    defaults = helm_python.Chart.load(str(CHART)).values

    def walk(values: dict[str, Any], path: tuple[str, ...]) -> None:
        for name, value in values.items():
            assert (*path, name) in known or path[-1:] in (("requests",), ("limits",)), (*path, name)
            if isinstance(value, dict):
                walk(value, (*path, name))

    walk(defaults, ())


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"routers": {"replica": 3}}, "replica"),
        ({"routers": {"replicas": 0}}, "/routers/replicas"),
        ({"routers": {"replicas": "two"}}, "/routers/replicas"),
        ({"routers": {"service": {"type": "Ingress"}}}, "/routers/service/type"),
        ({"workers": {"kvCache": "much"}}, "/workers/kvCache"),
        ({"workers": {"gpus": 2}}, "/workers/gpus"),
        ({"model": {"name": "two words"}}, "/model/name"),
        ({"model": {"runner": "paged"}}, "/model/folder"),
        ({"redis": {"mode": "existing"}}, "/redis/host"),
        ({"secrets": {"mode": "existing"}}, "/secrets/keys"),
        ({"tls": {"enabled": "yes"}}, "/tls/enabled"),
        ({"networkPolicy": {"redisCidr": "10.0.0.1"}}, "/networkPolicy/redisCidr"),
        ({"keda": {"prometheus": "prometheus:9090"}}, "/keda/prometheus"),
        ({"router": {}}, "router"),
        ({"workers": {"kvCache": "0GiB"}}, "/workers/kvCache"),
        ({"workers": {"hostCache": "0.0MiB"}}, "/workers/hostCache"),
        ({"workers": {"diskCache": "5GiB"}}, "/workers/hostCache"),
        ({"networkPolicy": {"tenants": [{}]}}, "/networkPolicy/tenants/0"),
        ({"networkPolicy": {"operators": [{"foo": {}}]}}, "/networkPolicy/operators/0"),
    ],
)
def test_a_wrong_value_is_refused_by_its_name(values: dict[str, Any], name: str) -> None:
    merged: dict[str, Any] = copy.deepcopy(SMALL)
    for section, each in values.items():
        merged[section] = {**merged.get(section, {}), **each}
    with pytest.raises(helm_python.HelmValuesError, match=name):
        lint_chart().render(merged)


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"workers": {"hostCache": "1GiB", "diskCache": "10.5GiB"}}, "workers.diskCache: 10.5GiB .*diskSize, 10Gi"),
        ({"workers": {"hostCache": "64GiB"}}, "workers.hostCache: 64GiB .*memory, 4Gi"),
        ({"workers": {"hostCache": "3GiB"}}, "workers.kvCache: 1GiB, with the host cache"),
        ({"workers": {"replicas": 20}}, "workers.replicas: 20 .*maxNodes is 8"),
        ({"routers": {"autoscaling": {"minReplicas": 20}}}, "autoscaling.minReplicas: 20 .*8"),
        ({"keda": {"enabled": True, "minWorkers": 9}}, "keda.minWorkers: 9 .*8"),
        ({"keda": {"enabled": True, "maxWorkers": 9}}, "keda.maxWorkers: 9 .*maxNodes is 8"),
        ({"networkPolicy": {"dns": {"peers": []}}}, "networkPolicy.dns.peers"),
    ],
)
def test_values_that_contradict_each_other_are_refused_by_name(values: dict[str, Any], name: str) -> None:
    with pytest.raises(helm_python.HelmRenderError, match=name):
        rendered_with(values)


def test_whole_numbers_are_told_as_such(tmp_path: Any) -> None:
    """Helm has every number as a float, and writes 1000000 as 1e+06."""
    many = 1_000_000
    documents = rendered_with(
        {
            "workers": {"cpus": many, "kvCache": "0.5KiB"},
            "tracing": {"tracesPerSecond": many},
            "routers": {"maxRequests": many, "maxRequestsPerTenant": many},
        }
    )
    for component, pod in pods(documents):
        for container in pod["containers"]:
            if component in ("router", "supervisor"):
                understood(container["command"], variables(container), tmp_path / component)


def test_who_answers_dns_can_be_named() -> None:
    peer = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "openshift-dns"}}}
    documents = rendered_with({"networkPolicy": {"dns": {"peers": [peer], "ports": [5353]}}})
    [rule] = of_kind(documents, "NetworkPolicy")["sc-deny"]["spec"]["egress"]
    assert rule == {"to": [peer], "ports": [{"port": 5353, "protocol": "UDP"}, {"port": 5353, "protocol": "TCP"}]}


def test_every_pod_may_fetch_its_image_and_be_placed() -> None:
    placed = {"nodeSelector": {"pool": "serving"}, "tolerations": [{"operator": "Exists"}]}
    documents = rendered_with(
        {
            "image": {"pullSecrets": [{"name": "mirror"}]},
            "redis": {"bundled": placed},
            "routers": placed,
            "workers": {
                **placed,
                "supervisorNodeSelector": placed["nodeSelector"],
                "supervisorTolerations": placed["tolerations"],
            },
        }
    )
    for component, pod in pods(documents):
        assert pod["imagePullSecrets"] == [{"name": "mirror"}], component
        if component != "ray-head":
            assert {name: pod[name] for name in placed} == placed, component


@pytest.mark.parametrize(("kind", "path"), [("Deployment", "spec"), ("RayCluster", "spec"), ("NetworkPolicy", "spec")])
def test_a_field_that_does_not_exist_is_found(rendered: dict[str, list[dict[str, Any]]], kind: str, path: str) -> None:
    document = copy.deepcopy(next(iter(of_kind(rendered["cpu-test.yaml"], kind).values())))
    document[path]["replicsa"] = 1
    assert any("replicsa" in fault for fault in lint_chart().faults(document))


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_programs_understand_what_they_are_told(
    rendered: dict[str, list[dict[str, Any]]], example: str, tmp_path: Any
) -> None:
    told = 0
    for component, pod in pods(rendered[example]):
        for container in pod["containers"]:
            if command := [*container.get("command", []), *container.get("args", [])]:
                understood(command, variables(container), tmp_path / component)
                told += 1
    assert told >= 2
    for cluster in of_kind(rendered[example], "RayCluster").values():
        for group in (cluster["spec"]["headGroupSpec"], *cluster["spec"]["workerGroupSpecs"]):
            flags = [f"--{name}={value}".replace("='{", "={").removesuffix("'") for name, value in _flags(group)]
            understood(["ray", "start", *flags], {}, tmp_path / "ray")


def _flags(group: dict[str, Any]) -> list[tuple[str, str]]:
    """KubeRay writes `--name` alone where the value is true."""
    params = group["rayStartParams"]
    return [(name, value) for name, value in params.items() if value != "true"]


@pytest.mark.parametrize("example", EXAMPLES)
def test_containers_have_no_rights_and_a_root_that_they_cannot_write_to(
    rendered: dict[str, list[dict[str, Any]]], example: str
) -> None:
    for component, pod in pods(rendered[example]):
        assert pod["securityContext"]["runAsNonRoot"] is True, component
        for container in pod["containers"]:
            security = container["securityContext"]
            assert security["readOnlyRootFilesystem"] is True, component
            assert security["allowPrivilegeEscalation"] is False, component
            assert security["capabilities"] == {"drop": ["ALL"]}, component
        for volume in pod.get("volumes", []):
            if "secret" in volume:
                assert volume["secret"]["defaultMode"] == 0o440, (component, volume["name"])


@pytest.mark.parametrize("example", EXAMPLES)
def test_nodes_of_ray_are_asked_at_ports_that_they_open(
    rendered: dict[str, list[dict[str, Any]]], example: str
) -> None:
    """KubeRay adds probes where there are none, which ask an agent that our image does not have."""
    [cluster] = of_kind(rendered[example], "RayCluster").values()
    head, [workers] = cluster["spec"]["headGroupSpec"], cluster["spec"]["workerGroupSpecs"]
    for group, port in ((head, 6379), (workers, int(workers["rayStartParams"]["node-manager-port"]))):
        [container] = group["template"]["spec"]["containers"]
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert container[probe]["tcpSocket"]["port"] == port


@pytest.mark.parametrize("example", EXAMPLES)
def test_ports_that_are_named_are_there(rendered: dict[str, list[dict[str, Any]]], example: str) -> None:
    documents = rendered[example]
    names = {
        component: {port["name"]: port["containerPort"] for each in pod["containers"] for port in each.get("ports", [])}
        for component, pod in pods(documents)
    }
    for service in of_kind(documents, "Service").values():
        component = service["spec"]["selector"]["app.kubernetes.io/component"]
        for port in service["spec"]["ports"]:
            assert names[component][port["targetPort"]] == port["port"]
    for component, pod in pods(documents):
        for container in pod["containers"]:
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                found = container.get(probe, {}).get("grpc")
                assert found is None or found["port"] == names[component]["health"]


def test_tenants_reach_routers_and_nothing_else(rendered: dict[str, list[dict[str, Any]]]) -> None:
    for example, documents in rendered.items():
        policies = of_kind(documents, "NetworkPolicy")
        assert policies["sc-deny"]["spec"]["policyTypes"] == ["Ingress", "Egress"]
        assert "ingress" not in policies["sc-deny"]["spec"]
        tenants = EXAMPLES[example]["networkPolicy"]["tenants"]
        for name, policy in policies.items():
            for rule in policy["spec"].get("ingress", []):
                if any(peer in tenants for peer in rule["from"]):
                    assert (name, rule["ports"]) == ("sc-router", [{"port": 7420}])
                assert rule["from"], f"{name} lets everybody in"


@pytest.mark.parametrize("example", EXAMPLES)
def test_processes_show_metrics_to_monitoring_alone(rendered: dict[str, list[dict[str, Any]]], example: str) -> None:
    """Each has the port, and of all rules that let somebody in there, each names those that monitor."""
    documents = rendered[example]
    shown = set()
    for component, pod in pods(documents):
        for container in pod["containers"]:
            if any(port["name"] == "sc-metrics" for port in container.get("ports", [])):
                shown.add(component)
    assert shown == {"router", "supervisor", "worker"}
    for component, pod in pods(documents):
        if component in ("router", "supervisor"):
            told = variables(pod["containers"][0])
            assert told["STEMCACHE_METRICS_LISTEN"].endswith(":9464")
            assert told["STEMCACHE_METRICS_TOKEN_FILE"] == "/run/secrets/keys/metrics-token"
    monitoring = EXAMPLES[example]["networkPolicy"].get("monitoring")
    policies = of_kind(documents, "NetworkPolicy")
    rules = [
        (name, rule["from"])
        for name, policy in policies.items()
        for rule in policy["spec"].get("ingress", [])
        if {"port": 9464} in rule.get("ports", [])
    ]
    named = [f"sc-{component}" for component in ("router", "supervisor", "worker")] if monitoring else []
    assert sorted(rules) == [(name, monitoring) for name in named]


def test_metrics_are_found_under_the_names_that_rules_read() -> None:
    monitor = of_kind(rendered_with({"metrics": {"podMonitor": True}}), "PodMonitor")["sc"]
    [endpoint] = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["port"] == "sc-metrics"
    assert {"targetLabel": "job", "replacement": "stemcache"} in endpoint["relabelings"]
    assert list(lint_chart().faults(monitor)) == []
    off = rendered_with({"metrics": {"enabled": False}})
    workers = [each for component, pod in pods(off) for each in pod["containers"] if component == "worker"]
    assert not [port for each in workers for port in each["ports"] if port["name"] == "sc-metrics"]


def test_spans_go_where_they_are_sent() -> None:
    collectors = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "tracing"}}}]
    documents = rendered_with(
        {"tracing": {"endpoint": "http://collector:4317"}, "networkPolicy": {"collectors": collectors}}
    )
    told = {component: variables(pod["containers"][0]) for component, pod in pods(documents)}
    for component in ("router", "supervisor"):
        assert told[component]["STEMCACHE_OTLP_ENDPOINT"] == "http://collector:4317"
    for name in ("sc-router", "sc-worker"):
        egress = of_kind(documents, "NetworkPolicy")[name]["spec"]["egress"]
        assert {"to": collectors} in egress


def rendered_with(values: dict[str, Any]) -> list[dict[str, Any]]:
    documents: list[dict[str, Any]] = lint_chart().render({**SMALL, **values})
    return documents


def test_redis_users_have_the_rights_of_their_roles() -> None:
    for role in RedisRole:
        assert (CHART / "files" / f"{role}.acl").read_text().strip() == acl_rules(role)


def test_secrets_stand_in_secrets_only(rendered: dict[str, list[dict[str, Any]]]) -> None:
    documents = rendered["cpu-test.yaml"]
    values = {
        base64.b64decode(value).decode()
        for secret in of_kind(documents, "Secret").values()
        for name, value in secret["data"].items()
        if name not in ("tls.crt", "ca.crt", "users.acl")
    }
    others = json.dumps([each for each in documents if each["kind"] != "Secret"])
    assert len(values) > 8
    assert [value for value in values if value in others] == []


def test_generated_secrets_fit(rendered: dict[str, list[dict[str, Any]]], tmp_path: Any) -> None:
    """The master key is one, each role's URL has a password whose hash the list of users has."""
    decoded = decoded_secrets(rendered["cpu-test.yaml"])
    from_value(decoded["master-key"])
    for role in RedisRole:
        parts = urlsplit(decoded[f"redis-url-{role}"])
        assert parts.username == role
        assert f"#{hashlib.sha256((parts.password or '').encode()).hexdigest()}" in decoded["users.acl"]
        assert acl_rules(role) in decoded["users.acl"]


def upgraded(kept: dict[str, dict[str, str]], values: dict[str, Any], folder: Path) -> dict[str, str]:
    """What secrets have after an upgrade of a release that had `kept`, by its name: no cluster is there to be asked."""
    chart = folder / "chart"
    shutil.copytree(CHART, chart)
    helpers = chart / "templates" / "_helpers.tpl"
    asked = 'lookup "v1" "Secret" (index . 0).Release.Namespace (index . 1)'
    assert helpers.read_text().count(asked) == 1
    helpers.write_text(helpers.read_text().replace(asked, "get (index . 0).Values.global (index . 1)"))
    there = {name: {"data": {key: _encoded(text) for key, text in data.items()}} for name, data in kept.items()}
    documents = lint_chart().render({**SMALL, **values, "global": there}, chart)
    return decoded_secrets(documents)


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def decoded_secrets(documents: list[dict[str, Any]]) -> dict[str, str]:
    secrets = of_kind(documents, "Secret").values()
    return {name: base64.b64decode(value).decode() for each in secrets for name, value in each["data"].items()}


def test_an_upgrade_keeps_secrets_and_writes_urls_and_rights_anew(tmp_path: Path) -> None:
    old, second = (hashlib.sha256(each.encode()).hexdigest() for each in ("secretrouter", "next"))
    kept = {
        "sc-keys": {"master-key": "a" * 64 + "\n" + "b" * 64, "admin-token": "of the operator"},
        "sc-ray-token": {"auth_token": "of ray"},
        "sc-redis-users": {
            **{f"redis-url-{role}": f"redis://{role}:secret{role}@elsewhere:1/0" for role in RedisRole},
            "users.acl": f"user router on #{old} #{second} resetchannels +get\nuser worker on #{'0' * 64} +get\n",
        },
    }
    after = upgraded(kept, {"redis": {"port": 6390}}, tmp_path)
    assert after["master-key"] == kept["sc-keys"]["master-key"]
    assert (after["admin-token"], after["auth_token"]) == ("of the operator", "of ray")
    assert len(after["metrics-token"]) == 48, "a key that the version before did not have is made"
    lines = {line.split()[1]: line for line in after["users.acl"].splitlines()}
    for role in RedisRole:
        parts = urlsplit(after[f"redis-url-{role}"])
        assert (parts.scheme, parts.hostname, parts.port) == ("rediss", "sc-redis", 6390)
        assert (parts.username, parts.password) == (role, f"secret{role}")
        assert f"#{hashlib.sha256(f'secret{role}'.encode()).hexdigest()} " in lines[role]
        assert lines[role].endswith(f"resetchannels {acl_rules(role)}")
    assert f"#{second}" in lines["router"], "a second password, halfway through its exchange, is kept"


def test_redis_starts_anew_with_other_rights(tmp_path: Path) -> None:
    def told(chart: Path) -> str:
        [redis] = [
            each
            for name, each in of_kind(lint_chart().render(SMALL, chart), "StatefulSet").items()
            if name == "sc-redis"
        ]
        annotations: dict[str, str] = redis["spec"]["template"]["metadata"]["annotations"]
        return annotations["stemcache/users"]

    assert told(CHART) == told(CHART)
    chart = tmp_path / "chart"
    shutil.copytree(CHART, chart)
    (chart / "files" / "worker.acl").write_text("+@all")
    assert told(chart) != told(CHART)
