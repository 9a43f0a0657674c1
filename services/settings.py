"""Settings from the environment. The only module of the services that reads it.

A bad value stops the process with its name, what was found and what would work. Secrets never appear in a repr.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NewType

from cache_store.errors import InvalidRequestError
from cache_store.telemetry.listen import MetricsListen
from cache_store.telemetry.spans import TRACES_PER_S, TracingSettings
from cache_store.tls_files import TlsFiles

Address = NewType("Address", str)
"""host:port, or [IPv6]:port; port 0 takes a free one."""

_ADDRESS = re.compile(r"(?:\[[0-9a-fA-F:.%]+\]|[^\s:\[\]]+):(?P<port>\d{1,5})")
_CALLS_PER_REQUEST = 4
_REDIS_SCHEMES = ("redis://", "rediss://", "unix://")


_RAY_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "600",  # by default a driver ends itself a minute after losing the GCS
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


def set_ray_environment() -> None:
    """Sets what Ray takes from the environment only, for this process and its children. Values set before stay."""
    for name, value in _RAY_ENVIRONMENT.items():
        os.environ.setdefault(name, value)


def environment() -> Mapping[str, str]:
    """A copy of the environment of this process, for settings of other modules and for child processes."""
    return dict(os.environ)


@dataclass(frozen=True, slots=True)
class Target:
    """A process that shows metrics."""

    role: str
    address: str
    """host:port."""


@dataclass(frozen=True, slots=True)
class RouterLimits:
    """What a router takes at most."""

    max_requests: int = 256
    """Generations that run at once."""
    max_requests_per_tenant: int = 64
    """Of them of one tenant."""
    max_message_bytes: int = 4 << 20
    """Size of one request message."""
    max_request_s: float = 600.0
    """Seconds that a generation may take; a shorter deadline of the caller goes first."""
    drain_s: float = 30.0
    """Seconds that running generations are given after SIGTERM."""
    write_s: float = 30.0
    """Seconds without reading after which a caller's stream is ended."""

    @property
    def max_calls(self) -> int:
        """Calls of all kinds at once: generations, retries that attach to them, and what only reads."""
        return _CALLS_PER_REQUEST * self.max_requests

    @property
    def max_calls_per_tenant(self) -> int:
        """Of them of one tenant."""
        return _CALLS_PER_REQUEST * self.max_requests_per_tenant


@dataclass(frozen=True, slots=True)
class RouterSettings:
    """Everything that a router process is told."""

    redis_url: str = field(repr=False)
    """Index and registry of workers."""
    control_redis_url: str = field(repr=False)
    """Tenants and keys; the same server unless told otherwise, under a user that may write control data."""
    master_key: str = field(repr=False)
    """Text of the master key; empty where a file holds it."""
    master_key_file: Path | None
    admin_token_file: Path
    listen: Address
    admin_listen: Address
    models: Mapping[str, Path]
    """Folder with the tokenizer of each model; a model without one takes token ids only."""
    data_dir: Path
    """Where the snapshot of the control data is kept."""
    limits: RouterLimits
    tls: TlsFiles | None = None
    """This router among the components: at the admin port, whose callers need a certificate too, and at workers."""
    public_tls: TlsFiles | None = None
    """Of the tenants' port; None: it is plain, for whoever ends TLS before it."""
    health_listen: Address | None = None
    """A plain port with the health service only."""
    console_listen: Address | None = None
    """Where operators look with a browser; None: nowhere."""
    metrics: MetricsListen | None = None
    """Where metrics are read; None: nowhere, and nothing is counted for them."""
    metrics_targets: tuple[Target, ...] = ()
    """Other processes that this router names to Prometheus, beside itself and its workers."""
    tracing: TracingSettings | None = None
    """Where spans go; None: there are none."""

    @staticmethod
    def from_environ(environ: Mapping[str, str] = os.environ) -> RouterSettings:
        """Raises InvalidRequestError, whose field is the variable's name."""
        reader = SettingsReader(environ)
        master_key, master_key_file = reader.master_key()
        redis_url = reader.redis_url("STEMCACHE_REDIS_URL", "")
        return RouterSettings(
            redis_url=redis_url,
            control_redis_url=reader.redis_url("STEMCACHE_CONTROL_REDIS_URL", redis_url),
            master_key=master_key,
            master_key_file=master_key_file,
            admin_token_file=reader.file("STEMCACHE_ADMIN_TOKEN_FILE"),
            listen=reader.address("STEMCACHE_LISTEN", "127.0.0.1:7420"),
            admin_listen=reader.address("STEMCACHE_ADMIN_LISTEN", "127.0.0.1:7421"),
            models=reader.models("STEMCACHE_MODELS"),
            data_dir=reader.folder("STEMCACHE_DATA_DIR"),
            limits=reader.limits(),
            tls=reader.tls(),
            public_tls=reader.public_tls(),
            health_listen=reader.optional_address("STEMCACHE_HEALTH_LISTEN"),
            console_listen=reader.optional_address("STEMCACHE_CONSOLE_LISTEN"),
            metrics=reader.metrics(),
            metrics_targets=reader.targets("STEMCACHE_METRICS_TARGETS"),
            tracing=reader.tracing(),
        )


def component_tls(environ: Mapping[str, str] = os.environ) -> TlsFiles | None:
    """What this process shows to other components; None where no variable names it. Raises InvalidRequestError."""
    return SettingsReader(environ).tls()


@dataclass(frozen=True, slots=True)
class SettingsReader:
    """Reads variables one by one. Every method raises InvalidRequestError, whose field is the variable's name."""

    environ: Mapping[str, str]

    def required(self, name: str, what: str) -> str:
        value = self.environ.get(name, "").strip()
        if not value:
            raise InvalidRequestError(name, f"{name} is not set; it names {what}")
        return value

    def redis_url(self, name: str, default: str) -> str:
        """Of the variable, or of the file that NAME_FILE names, so that a password need not stand in an environment."""
        value = self.environ.get(name, "").strip()
        if self.environ.get(f"{name}_FILE", "").strip():
            if value:
                raise InvalidRequestError(name, f"{name} and {name}_FILE are both set; unset one of them")
            value = self.file(f"{name}_FILE").read_text("utf-8").strip()
        value = value or default or self.required(name, "the Redis or Valkey server")
        if not value.startswith(_REDIS_SCHEMES):
            raise InvalidRequestError(name, f"{name} begins with none of {', '.join(_REDIS_SCHEMES)}")
        return value

    def master_key(self) -> tuple[str, Path | None]:
        value = self.environ.get("STEMCACHE_MASTER_KEY", "").strip()
        path = self.environ.get("STEMCACHE_MASTER_KEY_FILE", "").strip()
        if bool(value) == bool(path):
            raise InvalidRequestError(
                "STEMCACHE_MASTER_KEY_FILE", "set exactly one of STEMCACHE_MASTER_KEY_FILE and STEMCACHE_MASTER_KEY"
            )
        return value, Path(path) if path else None

    def file(self, name: str) -> Path:
        path = Path(self.required(name, "a file"))
        if not path.is_file():
            raise InvalidRequestError(name, f"{name}: there is no file {path}")
        return path

    def folder(self, name: str) -> Path:
        path = Path(self.required(name, "a folder"))
        if not path.is_dir():
            raise InvalidRequestError(name, f"{name}: there is no folder {path}")
        return path

    def address(self, name: str, default: str) -> Address:
        value = self.environ.get(name, "").strip() or default or self.required(name, "host:port")
        match = _ADDRESS.fullmatch(value)
        if match is None or int(match["port"]) > 65_535:
            raise InvalidRequestError(name, f"{name} is {value!r}; it is host:port, for example {default}")
        return Address(value)

    def optional_address(self, name: str) -> Address | None:
        return self.address(name, "") if self.environ.get(name, "").strip() else None

    def tls(self) -> TlsFiles | None:
        return self._tls("STEMCACHE_TLS_CERT_FILE", "STEMCACHE_TLS_KEY_FILE", "STEMCACHE_TLS_CA_FILE")

    def public_tls(self) -> TlsFiles | None:
        """A certificate of callers is wanted only where an authority for them is named."""
        certificate, key = "STEMCACHE_PUBLIC_TLS_CERT_FILE", "STEMCACHE_PUBLIC_TLS_KEY_FILE"
        authority = "STEMCACHE_PUBLIC_TLS_CLIENT_CA_FILE"
        if self.environ.get(authority, "").strip():
            return self._tls(certificate, key, authority)
        return self._tls(certificate, key)

    def _tls(self, certificate: str, key: str, *authority: str) -> TlsFiles | None:
        names = (certificate, key, *authority)
        given = [name for name in names if self.environ.get(name, "").strip()]
        if not given:
            return None
        for name in names:
            if name not in given:
                raise InvalidRequestError(name, f"{name} is not set, but {given[0]} is; set all of {', '.join(names)}")
        files = TlsFiles(self.file(certificate), self.file(key), self.file(authority[0]) if authority else None)
        try:
            files.read()
        except InvalidRequestError as error:
            raise InvalidRequestError(certificate, f"{certificate}: {error}") from error
        return files

    def metrics(self) -> MetricsListen | None:
        """`off`, or where to listen; with a token where it is not this machine only."""
        if self.environ.get("STEMCACHE_METRICS_LISTEN", "").strip() == "off":
            return None
        host, _, port = self.address("STEMCACHE_METRICS_LISTEN", "127.0.0.1:0").rpartition(":")
        path = self.environ.get("STEMCACHE_METRICS_TOKEN_FILE", "").strip()
        token = self.file("STEMCACHE_METRICS_TOKEN_FILE").read_text("ascii").strip() if path else ""
        try:
            return MetricsListen(host, int(port), token)
        except InvalidRequestError as error:
            name = "STEMCACHE_METRICS_LISTEN" if error.field != "metrics token" else "STEMCACHE_METRICS_TOKEN_FILE"
            raise InvalidRequestError(name, f"{name}: {error}") from error

    def tracing(self) -> TracingSettings | None:
        """Where no endpoint is set, nothing is traced."""
        endpoint = self.environ.get("STEMCACHE_OTLP_ENDPOINT", "").strip()
        traces_per_s = self.whole("STEMCACHE_TRACES_PER_S", TRACES_PER_S)
        if not endpoint:
            return None
        try:
            return TracingSettings(endpoint, traces_per_s)
        except InvalidRequestError as error:
            name = "STEMCACHE_OTLP_ENDPOINT" if error.field == "otlp endpoint" else "STEMCACHE_TRACES_PER_S"
            raise InvalidRequestError(name, f"{name}: {error}") from error

    def targets(self, name: str) -> tuple[Target, ...]:
        """`role=host:port`, separated by commas."""
        entries = filter(None, (part.strip() for part in self.environ.get(name, "").split(",")))
        targets = []
        for role, equals, address in (entry.partition("=") for entry in entries):
            if not (re.fullmatch(r"[a-z-]{1,32}", role) and equals and _ADDRESS.fullmatch(address)):
                raise InvalidRequestError(name, f"{name}: {role}{equals}{address} is no role=host:port")
            targets.append(Target(role, address))
        return tuple(targets)

    def models(self, name: str) -> Mapping[str, Path]:
        """`name=folder`, separated by commas."""
        models: dict[str, Path] = {}
        for entry in filter(None, (part.strip() for part in self.environ.get(name, "").split(","))):
            model, equals, folder = (part.strip() for part in entry.partition("="))
            if not (model and equals and folder) or model in models:
                raise InvalidRequestError(name, f"{name}: {entry!r} is no name=folder with a name of its own")
            if not Path(folder).is_dir():
                raise InvalidRequestError(name, f"{name}: model {model!r} has no folder {folder}")
            models[model] = Path(folder)
        return models

    def limits(self) -> RouterLimits:
        usual = RouterLimits()
        return RouterLimits(
            max_requests=self.whole("STEMCACHE_MAX_REQUESTS", usual.max_requests),
            max_requests_per_tenant=self.whole("STEMCACHE_MAX_REQUESTS_PER_TENANT", usual.max_requests_per_tenant),
            max_message_bytes=self.whole("STEMCACHE_MAX_MESSAGE_BYTES", usual.max_message_bytes),
            max_request_s=self.seconds("STEMCACHE_MAX_REQUEST_S", usual.max_request_s),
            drain_s=self.seconds("STEMCACHE_DRAIN_S", usual.drain_s),
            write_s=self.seconds("STEMCACHE_WRITE_S", usual.write_s),
        )

    def whole(self, name: str, default: int) -> int:
        value = self.environ.get(name, "").strip() or str(default)
        if not re.fullmatch(r"[0-9]{1,10}", value) or not 1 <= int(value) < 1 << 31:
            raise InvalidRequestError(name, f"{name} is {value!r}; it is a whole number of at least 1")
        return int(value)

    def seconds(self, name: str, default: float) -> float:
        value = self.environ.get(name, "").strip() or str(default)
        if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,6})?", value):
            raise InvalidRequestError(name, f"{name} is {value!r}; it is a number of seconds")
        return float(value)
