"""Rules, alerts and dashboards: tried by promtool, and by a real Prometheus that scrapes a real system."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from cache_store.clock import SystemClock
from cache_store.telemetry.listen import MetricsListen
from services.cluster.supervision import Supervisor
from services.cluster.up_metrics import shown
from services.cluster.valkey import EmbeddedValkey
from services.settings import Target
from tests.support.chart import lint_chart, of_kind
from tests.support.prometheus_server import Prometheus, needs_prometheus, scraping
from tests.support.redis_servers import server_named
from tests.support.router_host import Cluster, running_cluster, tokens_request
from tests.support.scripted_part import ScriptedPart
from worker.config import NumBlocks

FOLDER = Path(__file__).parents[2] / "infra" / "monitoring"
RULES = FOLDER / "rules.yml"
RUNBOOK = FOLDER.parent / "RUNBOOK.md"
DASHBOARDS = sorted((FOLDER / "dashboards").glob("*.json"))

ONLY_WHILE_SOMETHING_RUNS = {"stemcache_kv_real_bytes_per_token"}

_NAME = re.compile(r"(?<![\w:])(?:(?:stemcache|vllm|process)[a-z_]*(?::[a-z0-9_:]+)?|up)(?=[{\[) ,]|$)")


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def panels() -> Iterator[tuple[str, str]]:
    """Title and expression of everything on dashboards, as Grafana would ask."""
    for path in DASHBOARDS:
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel["targets"]:
                yield f"{path.stem}: {panel['title']}", target["expr"].replace("$__rate_interval", "1m")


def scalers() -> Iterator[tuple[str, str]]:
    """What the chart has KEDA and the horizontal autoscaler ask, without the namespace that a cluster adds."""
    documents = lint_chart().render(lint_chart().examples()["many-tenants.yaml"])
    for scaled in of_kind(documents, "ScaledObject").values():
        for trigger in scaled["spec"]["triggers"]:
            yield f"KEDA: {trigger['name']}", trigger["metadata"]["query"].replace('{namespace="serving"}', "")
    for scaler in of_kind(documents, "HorizontalPodAutoscaler").values():
        for metric in scaler["spec"]["metrics"]:
            if metric["type"] == "Pods":
                yield "autoscaler", metric["pods"]["metric"]["name"]


def test_the_chart_scales_workers_and_routers_by_what_they_have_to_do() -> None:
    asked = dict(scalers())
    assert set(asked) == {"KEDA: waiting", "KEDA: kv-use", "autoscaler"}
    assert not [query for query in asked.values() if "{" in query]


@needs_prometheus
@pytest.mark.parametrize("arguments", [("check", "rules", "rules.yml"), ("test", "rules", "rules_test.yml")])
def test_promtool_agrees(arguments: tuple[str, ...]) -> None:
    done = subprocess.run(["promtool", *arguments], cwd=FOLDER, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_is_tried_and_explained() -> None:
    alerts = {rule["alert"] for rule in rules() if "alert" in rule}
    explained = set(re.findall(r"^### (Stemcache\w+)$", RUNBOOK.read_text(), re.MULTILINE))
    tests = yaml.safe_load((FOLDER / "rules_test.yml").read_text())["tests"]
    fired = {each["alertname"] for test in tests for each in test["alert_rule_test"] if each.get("exp_alerts")}
    assert alerts == explained == fired
    links = {rule["alert"]: rule["annotations"]["runbook_url"] for rule in rules() if "alert" in rule}
    assert links == {name: f"infra/RUNBOOK.md#{name.lower()}" for name in alerts}
    told = dict(re.findall(r"^### (\w+)\n\n\*(\w+)\.\*", RUNBOOK.read_text(), re.MULTILINE))
    assert told == {rule["alert"]: rule["labels"]["severity"] for rule in rules() if "alert" in rule}


def test_dashboards_name_nothing_of_one_installation() -> None:
    assert len(DASHBOARDS) == 3
    for path in DASHBOARDS:
        dashboard = json.loads(path.read_text())
        assert dashboard["uid"].startswith("stemcache-")
        places = [(each["gridPos"]["x"], each["gridPos"]["y"]) for each in dashboard["panels"]]
        assert len(set(places)) == len(places)
        for panel in dashboard["panels"]:
            for target in panel["targets"]:
                assert target["datasource"]["uid"] == "${datasource}"


@needs_prometheus
async def test_every_expression_finds_what_the_system_shows(
    request: pytest.FixtureRequest, valkey: EmbeddedValkey, tmp_path: Path
) -> None:
    urls = server_named(request, "valkey").urls
    worker = {"metrics": MetricsListen(), "pool": NumBlocks(24), "host_pool": NumBlocks(16)}
    with ExitStack() as stack:
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        head = f"127.0.0.1:{listening.getsockname()[1]}"
        up = stack.enter_context(shown(MetricsListen(), head))
        up.supervisor = Supervisor([[ScriptedPart("router", [])]], SystemClock())
        targets = (Target("up", up.address),)
        async with (
            running_cluster(
                urls, tmp_path / "router", (worker, worker), metrics=MetricsListen(), metrics_targets=targets
            ) as cluster,
            scraping(cluster.router.metrics_address, RULES, tmp_path) as prometheus,
        ):
            await _until_scraped(cluster, prometheus)
            await _check(prometheus)


async def _until_scraped(cluster: Cluster, prometheus: Prometheus) -> None:
    """Traffic until all recorded series are there: a rate needs two scrapes after something has changed."""
    recorded = [rule["record"] for rule in rules() if "record" in rule]
    async with asyncio.timeout(45):
        while True:
            for tenant in (cluster.acme, cluster.globex):
                for at in (0, 0, 200, 400, 600):
                    await tenant.generate(tokens_request([at + token for token in range(1, 81)]))
            if all([await prometheus.ask(name) for name in recorded]):
                return


async def _check(prometheus: Prometheus) -> None:
    jobs = await prometheus.ask('up{job="stemcache"}')
    assert sorted(each["metric"]["role"] for each in jobs) == ["router", "up", "worker", "worker"]
    assert {each["value"][1] for each in jobs} == {"1"}
    for group in (await prometheus.get("rules"))["groups"]:
        for rule in group["rules"]:
            assert rule["health"] == "ok", rule
            assert rule.get("state", "inactive") in ("inactive", "pending"), rule
    for title, expression in (*panels(), *scalers()):
        found = await prometheus.ask(expression)
        assert found or any(name in expression for name in ONLY_WHILE_SOMETHING_RUNS), f"{title}: {expression}"
    asked = [expression for _, expression in (*panels(), *scalers())] + [rule["expr"] for rule in rules()]
    names = {name for expression in asked for name in _NAME.findall(expression)}
    assert len(names) > 60
    unknown = [name for name in sorted(names - ONLY_WHILE_SOMETHING_RUNS) if not await prometheus.ask(f"count({name})")]
    assert unknown == []
