"""Settings of a supervisor: good values arrive, a bad one is refused by its name, secrets stay out of sight."""

from __future__ import annotations

from pathlib import Path

import pytest

from cache_store.errors import InvalidRequestError
from services.cluster.place import worker_spec
from services.supervisor_settings import SupervisorSettings
from worker.config import WorkerConfig


@pytest.fixture
def environ() -> dict[str, str]:
    return {
        "STEMCACHE_RAY_ADDRESS": "10.0.0.1:6379",
        "STEMCACHE_REDIS_URL": "rediss://worker:pw@10.0.0.2:6379/0",
        "STEMCACHE_MASTER_KEY": "ab" * 32,
        "STEMCACHE_MODEL": "small=/models/small",
    }


def test_reads_the_environment_with_defaults(environ: dict[str, str]) -> None:
    settings = SupervisorSettings.from_environ(environ)
    assert settings.worker_ids == ("worker",)
    assert (settings.model_name, settings.model_folder) == ("small", Path("/models/small"))
    assert (settings.worker_tls, settings.health_listen, settings.host_bytes) == (None, None, None)


def test_several_workers_are_numbered(environ: dict[str, str]) -> None:
    environ |= {"STEMCACHE_NUM_WORKERS": "2", "STEMCACHE_WORKER_ID": "cpu", "STEMCACHE_KV_CACHE": "2GiB"}
    settings = SupervisorSettings.from_environ(environ)
    assert settings.worker_ids == ("cpu-0", "cpu-1")
    assert settings.kv_bytes == 2 << 30


def test_secrets_are_not_shown(environ: dict[str, str]) -> None:
    shown = repr(SupervisorSettings.from_environ(environ))
    assert ":pw" not in shown
    assert "abab" not in shown


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("STEMCACHE_RAY_ADDRESS", ""),
        ("STEMCACHE_RAY_ADDRESS", "ray"),
        ("STEMCACHE_REDIS_URL", ""),
        ("STEMCACHE_WORKER_ID", "Worker_1"),
        ("STEMCACHE_NUM_WORKERS", "0"),
        ("STEMCACHE_MODEL", ""),
        ("STEMCACHE_MODEL", "small"),
        ("STEMCACHE_RUNNER", "fast"),
        ("STEMCACHE_KV_CACHE", "much"),
        ("STEMCACHE_DISK_CACHE", "1GiB"),
        ("STEMCACHE_WORKER_GPUS", "-1"),
        ("STEMCACHE_METRICS_LISTEN", "0.0.0.0:9464"),
        ("STEMCACHE_WORKER_METRICS_PORT", "nine"),
        ("STEMCACHE_WORKER_METRICS_PORT", "9464"),
        ("STEMCACHE_OTLP_ENDPOINT", "collector"),
    ],
)
def test_a_bad_value_is_refused_by_its_name(environ: dict[str, str], name: str, value: str) -> None:
    environ[name] = value
    with pytest.raises(InvalidRequestError) as caught:
        SupervisorSettings.from_environ(environ)
    assert caught.value.field == name


def test_workers_show_metrics_under_the_token_only(environ: dict[str, str], tmp_path: Path) -> None:
    alone = SupervisorSettings.from_environ(environ)
    assert alone.metrics is not None
    assert alone.metrics.host == "127.0.0.1"
    assert alone.worker_metrics is None
    (tmp_path / "token").write_text("t" * 32 + "\n")
    environ |= {
        "STEMCACHE_METRICS_LISTEN": "0.0.0.0:9464",
        "STEMCACHE_METRICS_TOKEN_FILE": str(tmp_path / "token"),
        "STEMCACHE_WORKER_METRICS_PORT": "9464",
        "STEMCACHE_OTLP_ENDPOINT": "http://collector:4317",
    }
    settings = SupervisorSettings.from_environ(environ)
    for listen in (settings.metrics, settings.worker_metrics):
        assert listen is not None
        assert (listen.port, listen.token) == (9464, "t" * 32)
    assert "tttt" not in repr(settings)
    config = worker_spec(settings, "worker").arguments[0]
    assert isinstance(config, WorkerConfig)
    assert (config.metrics, config.tracing) == (settings.worker_metrics, settings.tracing)
    with pytest.raises(InvalidRequestError, match="2 workers"):
        SupervisorSettings.from_environ(environ | {"STEMCACHE_NUM_WORKERS": "2"})
    off = SupervisorSettings.from_environ(
        environ | {"STEMCACHE_METRICS_LISTEN": "off", "STEMCACHE_WORKER_METRICS_PORT": ""}
    )
    assert (off.metrics, off.worker_metrics) == (None, None)


def test_the_digest_runner_has_a_name_alone(environ: dict[str, str]) -> None:
    environ |= {"STEMCACHE_RUNNER": "digest", "STEMCACHE_MODEL": "digest"}
    assert SupervisorSettings.from_environ(environ).model_folder is None
    environ["STEMCACHE_MODEL"] = "digest=/models/small"
    with pytest.raises(InvalidRequestError, match="a name alone"):
        SupervisorSettings.from_environ(environ)
