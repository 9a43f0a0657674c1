"""`stemcache plan`: what of a model fits where, by its config.json, before anything is bought, loaded or started."""

from __future__ import annotations

import argparse
from pathlib import Path

from cache_store.kv_layout import KvDtype
from cache_store.planning.model_shape import COMPUTED_DTYPES, Choices, ModelShape, read_model
from cache_store.planning.pool import Load
from cache_store.planning.report import Question, plan
from cache_store.planning.speed import Device
from services.cli.exit_codes import ExitCode
from services.cli.output import print_json
from services.cli.plan_tenants import read_tenants
from services.cli.plan_text import print_report
from services.cli.rates import bytes_per_s, flops, tokens
from services.cli.sizes import size_bytes

_EPILOG = """Everything follows from the shapes in config.json; nothing is loaded. Weights are taken from the headers
of the folder's safetensors files where there are some. Ends with status 1 where the load does not fit."""
_DEFAULT_CONTEXT = 8192
_FIRST_CONTEXT = 1024


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command to the parser."""
    parser = commands.add_parser(
        "plan",
        help="what of a model fits where, by its config.json",
        description="Tells what a model's keys and values take, what fits into a device, and what would make it fit.",
        epilog=_EPILOG,
    )
    parser.add_argument("model", type=Path, metavar="MODEL", help="Hugging Face model folder, or a config.json alone")
    _add_load(parser)
    _add_model(parser)
    _add_device(parser)
    parser.add_argument(
        "--tenants", type=Path, metavar="FILE", help="quotas, as JSON: shows each tenant's blocks (needs --gpu-memory)"
    )
    parser.add_argument("--json", action="store_true", help="print all fields as JSON")
    parser.set_defaults(run=run)


def _add_load(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what is to run at once")
    group.add_argument("--context", type=tokens, help="tokens of a request, prompt and answer (32k; default: 8k)")
    group.add_argument("--requests", type=_positive, default=1, metavar="N", help="requests at once (default: 1)")
    group.add_argument("--used", type=tokens, help="tokens that a request has really got, on average")
    group.add_argument("--shared-prefix", type=tokens, help="leading tokens that all have in common: kept once")


def _add_model(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("how the model is kept")
    dtypes, kv_dtypes = [str(each) for each in COMPUTED_DTYPES], [str(each) for each in KvDtype]
    group.add_argument("--dtype", choices=dtypes, help="type of the weights (default: as config.json says)")
    group.add_argument("--kv-dtype", choices=["auto", *kv_dtypes], default="auto", help="of keys and values")
    group.add_argument("--weights", type=size_bytes, metavar="SIZE", help="bytes of the weights, where they are known")


def _add_device(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the device", "Speeds are taken as told; measure them, or read a data sheet.")
    group.add_argument("--gpu-memory", type=size_bytes, metavar="SIZE", help="memory of the device, or a worker's part")
    group.add_argument(
        "--reserve",
        type=size_bytes,
        default=2 << 30,
        metavar="SIZE",
        help="of it for everything beside weights and cache: activations, libraries (an assumption; default: 2GiB)",
    )
    group.add_argument("--memory-bandwidth", type=bytes_per_s, default=0.0, metavar="RATE", help="as 4.8TB/s")
    group.add_argument("--link", type=bytes_per_s, default=0.0, metavar="RATE", help="host to device, as 50GB/s")
    group.add_argument("--compute", type=flops, default=0.0, metavar="RATE", help="that prefill reaches, as 400TFLOPS")
    group.add_argument(
        "--prefill-speed",
        type=_speed,
        default=0.0,
        metavar="TOKENS_PER_S",
        help="measured, as `stemcache status` shows it; instead of --compute",
    )


def run(args: argparse.Namespace) -> int:
    """Prints the plan; REFUSED where the load does not fit."""
    choices = Choices(
        dtype=KvDtype(args.dtype) if args.dtype else None,
        kv_dtype=None if args.kv_dtype == "auto" else KvDtype(args.kv_dtype),
        weights_bytes=args.weights,
    )
    model = read_model(args.model, choices)
    report = plan(model, _question(args, model))
    if args.json:
        print_json(report)
    else:
        print_report(report)
    return ExitCode.OK if report.fit is None or report.fit.fits else ExitCode.REFUSED


def _question(args: argparse.Namespace, model: ModelShape) -> Question:
    context = args.context or min(_DEFAULT_CONTEXT, model.max_tokens or _DEFAULT_CONTEXT)
    if args.tenants is not None and args.gpu_memory is None:
        raise ValueError("--tenants are parts of a pool, whose size follows from --gpu-memory: add it")
    return Question(
        load=Load(args.requests, context, args.used or context, args.shared_prefix or 0),
        memory_bytes=args.gpu_memory or 0,
        reserve_bytes=args.reserve,
        device=Device(args.memory_bandwidth, args.link, args.compute, args.prefill_speed),
        tenants=read_tenants(args.tenants) if args.tenants is not None else {},
        contexts=_contexts(context),
    )


def _contexts(last: int) -> tuple[int, ...]:
    """From 1,024 on times four, up to the planned context."""
    found, context = [], _FIRST_CONTEXT
    while context < last:
        found.append(context)
        context *= 4
    return (*found, last)


def _positive(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 1_000_000:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of requests; write 1 to 1000000")
    return int(text)


def _speed(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no speed; write tokens per second, as 12000")
    return value
