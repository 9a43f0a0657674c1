"""Flags of `stemcache loadtest run`, `sweep` and `gen`: names are those of `vllm bench serve` where it has one."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

from services.cli.connection import add_admin_flags
from services.cli.durations import seconds, some_seconds
from services.loadtest.arrivals import MAX_CALLERS, RampKind
from services.loadtest.result import METRICS
from services.loadtest.run_plan import CacheStart, Priming
from services.loadtest.workloads import WorkloadKind, WorkloadSpec

USUAL_RATE, USUAL_NUM_PROMPTS = 2.0, 100
_LABEL = re.compile(r"[A-Za-z0-9_.-]{0,64}", re.ASCII)
_PARAMETERS: dict[str, tuple[tuple[str, ...], str]] = {
    "num_prefixes": (("--num-prefixes", "--prefix-repetition-num-prefixes"), "shared prefixes or documents"),
    "prefix_len": (("--prefix-len", "--prefix-repetition-prefix-len"), "tokens of each shared prefix or document"),
    "suffix_len": (
        ("--suffix-len", "--prefix-repetition-suffix-len", "--input-len"),
        "tokens of each prompt's own",
    ),
    "output_len": (("--output-len", "--prefix-repetition-output-len"), "tokens of each answer"),
    "range_ratio": (("--range-ratio", "--random-range-ratio"), "lengths of suffixes and answers vary by that part"),
    "zipf": (("--zipf",), "shared-prefix: exponent of popularity"),
    "turns": (("--turns",), "conversation: requests each; documents: questions each"),
    "think_s": (("--think-time",), "conversation: from an answer to the next turn, such as 2s"),
    "pool_factor": (("--pool-factor",), "tier-pressure: prefixes take that many times the KV pool"),
    "trace": (
        ("--trace", "--dataset-path"),
        "trace: file of Mooncake, kv-cache-tester or Azure, plain or .zst",
    ),
    "trace_block_tokens": (
        ("--trace-block-tokens",),
        "trace: tokens for each block of the trace (usual: its own)",
    ),
    "time_scale": (("--time-scale",), "trace: times are multiplied by it; 0.5 is twice as fast"),
}


def add_load_flags(parser: argparse.ArgumentParser) -> None:
    """Where to, who, how fast, how much, and what."""
    _add_target(parser)
    _add_arrival(parser)
    add_workload(parser)
    _add_lifecycle(parser)
    _add_results(parser)


def _add_target(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("system under load")
    group.add_argument(
        "--target",
        nargs="+",
        default=["stemcache"],
        metavar=("KIND", "URL"),
        help="`stemcache`, or `openai URL`: another server with /v1/completions (default: stemcache)",
    )
    group.add_argument("--address", metavar="HOST:PORT", help="where the API listens (default: the running system's)")
    group.add_argument("--model", default="", help="model to call (default: the only one)")
    group.add_argument("--tokenizer", type=Path, metavar="DIR", help="openai: folder with tokenizer.json")
    group.add_argument(
        "--prompt-form",
        choices=("tokens", "text"),
        default="tokens",
        help="openai: how prompts are sent; not every server takes token ids",
    )
    group.add_argument(
        "--server-max-num-seqs", type=whole, default=0, metavar="N", help="openai: its batch limit, for `compare`"
    )
    group.add_argument(
        "--server-hardware", default="", metavar="TEXT", help="openai: what it runs on, where that is another machine"
    )
    group.add_argument("--server-version", default="", metavar="TEXT", help="openai: such as 'vllm 0.11.0'")
    group.add_argument("--request-timeout", type=some_seconds, default=300.0, metavar="TIME", help="of each request")
    keys = group.add_mutually_exclusive_group()
    keys.add_argument("--key", help="API key of one tenant (default: STEMCACHE_API_KEY)")
    keys.add_argument("--key-file", type=Path, metavar="FILE", help="file that holds the API key")
    group.add_argument(
        "--tenants",
        metavar="N|FILE",
        help="that many tenants, made for the run by the operator's API; or a TOML or JSON file with a table for each: "
        "weight, rate or concurrency, workload and its parameters, key, quota",
    )
    group.add_argument(
        "--noisy-neighbour",
        type=_callers,
        metavar="N",
        help="one more tenant, made for the run: N callers without pause, prompts that never come again",
    )
    add_admin_flags(parser)


def _add_arrival(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("arrivals", "Of each tenant. An open loop is timed from when a request was due.")
    group.add_argument(
        "--request-rate",
        type=rate,
        metavar="RPS",
        help=f"requests per second of an open loop, or inf: all at once (default: {USUAL_RATE:g})",
    )
    group.add_argument(
        "--burstiness",
        type=rate,
        default=1.0,
        metavar="SHAPE",
        help="of gamma distributed gaps: 1 Poisson (default), below in bursts, above more even, inf constant",
    )
    group.add_argument(
        "--max-concurrency",
        type=_callers,
        metavar="N",
        help="without --request-rate a closed loop of N callers; with one, at most N requests at once",
    )
    group.add_argument("--num-prompts", type=whole, metavar="N", help=f"requests (default: {USUAL_NUM_PROMPTS})")
    group.add_argument("--duration", type=some_seconds, metavar="TIME", help="nothing is sent after that, such as 5m")
    group.add_argument("--ramp-up-strategy", choices=[*RampKind], help="the rate grows over the run")
    group.add_argument("--ramp-up-start-rps", type=rate, metavar="RPS", help="rate at its beginning")
    group.add_argument("--ramp-up-end-rps", type=rate, metavar="RPS", help="rate at its end")


def add_workload(parser: argparse.ArgumentParser) -> None:
    """What is sent."""
    group = parser.add_argument_group("workload", "Lengths are in the served model's tokens.")
    group.add_argument("--seed", type=int, default=0, help="same seed, same requests (default: 0)")
    group.add_argument(
        "--workload",
        "--dataset-name",
        type=lambda text: text.replace("_", "-"),
        choices=[*WorkloadKind],
        default=str(WorkloadKind.SHARED_PREFIX),
        help="(default: shared-prefix)",
    )
    usual = {each.name: each.default for each in fields(WorkloadSpec)}
    for name, (flags, text) in _PARAMETERS.items():
        kind = seconds if name == "think_s" else type(usual[name])
        group.add_argument(*flags, dest=name, type=kind, metavar="X", help=text)
    group.add_argument("--pool-tokens", type=whole, default=0, metavar="N", help="tier-pressure: tokens of the KV pool")


def _add_lifecycle(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("course of a run: warm the model, empty the cache, prime, measure, verify")
    group.add_argument("--num-warmups", type=int, default=4, metavar="N", help="requests past the cache (default: 4)")
    group.add_argument(
        "--cache-start",
        choices=[*CacheStart],
        default=CacheStart.FRESH,
        help="a partition that nobody has used (default), --partition purged, or what is there",
    )
    group.add_argument("--partition", default="", metavar="NAME", help="space of the cache, with purge or keep")
    group.add_argument(
        "--priming",
        choices=[*Priming],
        default=Priming.PREFIXES,
        help="cache each shared prefix before the measured part (default), or not",
    )
    group.add_argument("--drain", type=seconds, default=60.0, metavar="TIME", help="for what runs after --duration")
    group.add_argument(
        "--sample-every", type=some_seconds, default=1.0, metavar="TIME", help="looks at the server's state"
    )


def _add_results(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("results")
    group.add_argument(
        "--result-dir", type=Path, metavar="DIR", help="folder to write (default: a new one in loadtest-results)"
    )
    group.add_argument("--label", type=_label, default="", help="is added to the folder's name")
    group.add_argument(
        "--percentile-metrics",
        type=_metrics,
        default=METRICS,
        metavar="LIST",
        help="latencies to print: ttft,tpot,itl,e2el",
    )
    group.add_argument(
        "--metric-percentiles", type=_percentiles, default=(), metavar="LIST", help="beside 50,95,99: such as 90,99.9"
    )
    group.add_argument(
        "--goodput", nargs="+", type=_limit, default=[], metavar="METRIC:MS", help="such as ttft:500 tpot:50 e2el:5000"
    )
    group.add_argument("--json", action="store_true", help="print result.json in place of the text")


def _listed(text: str, read: Callable[[str], float]) -> tuple[float, ...]:
    return tuple(read(each.strip()) for each in text.split(","))


def rates(text: str) -> tuple[float, ...]:
    """`1,2,4.5`."""
    return _listed(text, rate)


def wholes(text: str) -> tuple[int, ...]:
    """`1,4,16`."""
    return tuple(_callers(each.strip()) for each in text.split(","))


def rate(text: str) -> float:
    """A number above 0, or inf."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")
    return value


def whole(text: str) -> int:
    """A whole number from 1 on."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 on")
    return int(text)


def _callers(text: str) -> int:
    if (value := whole(text)) > MAX_CALLERS:
        raise argparse.ArgumentTypeError(f"{value} is too many; at most {MAX_CALLERS:,}")
    return value


def _label(text: str) -> str:
    if not _LABEL.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no label; write letters, digits, '.', '_' and '-', at most 64")
    return text


def _metrics(text: str) -> tuple[str, ...]:
    found = tuple(each.strip() for each in text.split(","))
    if unknown := set(found) - set(METRICS):
        raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))} is unknown; known are {', '.join(METRICS)}")
    return found


def _percentiles(text: str) -> tuple[float, ...]:
    found = _listed(text, rate)
    if not all(0 < each < 100 for each in found):
        raise argparse.ArgumentTypeError(f"{text!r}: percentiles lie between 0 and 100")
    return found


def _limit(text: str) -> tuple[str, float]:
    metric, colon, value = text.partition(":")
    if not colon or metric not in ("ttft", "tpot", "e2el"):
        raise argparse.ArgumentTypeError(f"{text!r} is no limit; write ttft:500, tpot:50 or e2el:5000, in milliseconds")
    return metric, rate(value)
