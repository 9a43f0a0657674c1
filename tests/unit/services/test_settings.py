"""Settings: good values arrive, a bad one is refused by its name, secrets stay out of sight."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from cache_store.errors import InvalidRequestError
from cache_store.telemetry.listen import MetricsListen
from cache_store.tls_files import Component, TlsFiles
from services.certs.folder import CertificateFolder, Step
from services.settings import RouterLimits, RouterSettings, Target


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "token").write_text("t")
    (tmp_path / "model").mkdir()
    return {
        "STEMCACHE_REDIS_URL": "redis://:pw@127.0.0.1:6379/0",
        "STEMCACHE_MASTER_KEY": "ab" * 32,
        "STEMCACHE_ADMIN_TOKEN_FILE": str(tmp_path / "token"),
        "STEMCACHE_DATA_DIR": str(tmp_path),
        "STEMCACHE_MODELS": f"small={tmp_path / 'model'}, other={tmp_path / 'model'}",
    }


def test_reads_the_environment_with_defaults(environ: dict[str, str], tmp_path: Path) -> None:
    settings = RouterSettings.from_environ(environ)
    assert settings.control_redis_url == settings.redis_url
    assert dict(settings.models) == {"small": tmp_path / "model", "other": tmp_path / "model"}
    assert settings.listen == "127.0.0.1:7420"
    assert settings.limits == RouterLimits()


def test_metrics_are_shown_on_this_machine_unless_told_otherwise(environ: dict[str, str], tmp_path: Path) -> None:
    assert RouterSettings.from_environ(environ).metrics == MetricsListen("127.0.0.1", 0)
    assert RouterSettings.from_environ({**environ, "STEMCACHE_METRICS_LISTEN": "off"}).metrics is None
    (tmp_path / "metrics-token").write_text("m" * 32 + "\n")
    elsewhere = {
        "STEMCACHE_METRICS_LISTEN": "0.0.0.0:9090",
        "STEMCACHE_METRICS_TOKEN_FILE": str(tmp_path / "metrics-token"),
        "STEMCACHE_METRICS_TARGETS": "up=127.0.0.1:1, router=10.0.0.2:9",
    }
    settings = RouterSettings.from_environ(environ | elsewhere)
    assert settings.metrics == MetricsListen("0.0.0.0", 9090, "m" * 32)
    assert settings.metrics_targets == (Target("up", "127.0.0.1:1"), Target("router", "10.0.0.2:9"))
    assert "mmmm" not in repr(settings)


def test_secrets_are_not_shown(environ: dict[str, str]) -> None:
    shown = repr(RouterSettings.from_environ(environ))
    assert "pw" not in shown
    assert "abab" not in shown


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("STEMCACHE_REDIS_URL", ""),
        ("STEMCACHE_REDIS_URL", "http://x"),
        ("STEMCACHE_CONTROL_REDIS_URL", "http://x"),
        ("STEMCACHE_ADMIN_TOKEN_FILE", "/nowhere/at/all"),
        ("STEMCACHE_DATA_DIR", "/nowhere/at/all"),
        ("STEMCACHE_LISTEN", "7420"),
        ("STEMCACHE_LISTEN", "h:70000"),
        ("STEMCACHE_ADMIN_LISTEN", "::1:5"),
        ("STEMCACHE_MODELS", "small"),
        ("STEMCACHE_MODELS", "small=/nowhere/at/all"),
        ("STEMCACHE_MAX_REQUESTS", "0"),
        ("STEMCACHE_MAX_REQUESTS", "many"),
        ("STEMCACHE_DRAIN_S", "-1"),
        ("STEMCACHE_DRAIN_S", "nan"),
        ("STEMCACHE_HEALTH_LISTEN", "7422"),
        ("STEMCACHE_CONTROL_REDIS_URL_FILE", "/nowhere/at/all"),
        ("STEMCACHE_METRICS_LISTEN", "9090"),
        ("STEMCACHE_METRICS_LISTEN", "0.0.0.0:9090"),
        ("STEMCACHE_METRICS_TOKEN_FILE", "/nowhere/at/all"),
        ("STEMCACHE_METRICS_TARGETS", "up"),
        ("STEMCACHE_METRICS_TARGETS", "up=nowhere"),
    ],
)
def test_a_bad_value_is_refused_by_its_name(environ: dict[str, str], name: str, value: str) -> None:
    environ[name] = value
    with pytest.raises(InvalidRequestError, match=name) as error:
        RouterSettings.from_environ(environ)
    assert error.value.field == name


@pytest.mark.parametrize("both", [{"STEMCACHE_MASTER_KEY": ""}, {"STEMCACHE_MASTER_KEY_FILE": "/k"}])
def test_the_master_key_comes_from_exactly_one_place(environ: dict[str, str], both: dict[str, str]) -> None:
    with pytest.raises(InvalidRequestError, match="exactly one of"):
        RouterSettings.from_environ(environ | both)


@pytest.mark.parametrize("address", ["127.0.0.1:0", "[::1]:7420", "localhost:65535"])
def test_addresses(environ: dict[str, str], address: str) -> None:
    assert RouterSettings.from_environ(environ | {"STEMCACHE_LISTEN": address}).listen == address


def test_certificates_are_given_together(environ: dict[str, str], tmp_path: Path) -> None:
    folder = CertificateFolder(tmp_path / "certs")
    folder.write({}, timedelta(days=1), Step.KEEP)
    files = folder.files(Component.ROUTER)
    environ["STEMCACHE_PUBLIC_TLS_CERT_FILE"] = environ["STEMCACHE_TLS_CERT_FILE"] = str(files.certificate)
    environ["STEMCACHE_PUBLIC_TLS_KEY_FILE"] = environ["STEMCACHE_TLS_KEY_FILE"] = str(files.key)
    with pytest.raises(InvalidRequestError, match="STEMCACHE_TLS_CA_FILE is not set"):
        RouterSettings.from_environ(environ)
    environ["STEMCACHE_TLS_CA_FILE"] = str(files.authority)
    settings = RouterSettings.from_environ(environ)
    assert settings.tls == files
    assert settings.public_tls == TlsFiles(files.certificate, files.key, None)


def test_a_redis_url_may_stand_in_a_file(environ: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "url").write_text("rediss://operator:pw@h:1/0\n")
    environ["STEMCACHE_CONTROL_REDIS_URL_FILE"] = str(tmp_path / "url")
    assert RouterSettings.from_environ(environ).control_redis_url == "rediss://operator:pw@h:1/0"
    environ["STEMCACHE_CONTROL_REDIS_URL"] = "redis://h:1"
    with pytest.raises(InvalidRequestError, match="both set"):
        RouterSettings.from_environ(environ)
