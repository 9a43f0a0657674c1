"""`stemcache generate`: one request, its answer streamed."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from services.cli.answer_details import print_details
from services.cli.connection import add_tenant_flags, tenant_client
from services.cli.durations import seconds
from services.cli.exit_codes import ExitCode
from services.cli.output import below_device, print_json
from services.cli.prompts import add_prompt_flags, count_of, prompt_of
from services.client import (
    CacheHints,
    CacheMode,
    Delta,
    Generation,
    GenerationFinished,
    GenerationRequest,
    GenerationStarted,
    Route,
    Sampling,
    StemcacheClient,
    Timings,
    Usage,
)

NOTICEABLE_S = 0.05
"""A shorter wait in the queue is not worth a word."""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command to the parser."""
    parser = commands.add_parser("generate", help="send one request and stream its answer")
    add_prompt_flags(parser)
    add_tenant_flags(parser)
    parser.add_argument("--json", action="store_true", help="print all fields of the answer as JSON")
    parser.add_argument("-v", "--verbose", action="store_true", help="tell on stderr what it used and where time went")
    parser.add_argument(
        "--operator-token-file", type=Path, metavar="FILE", help="the operator's token: -v also tells why it went there"
    )
    parser.add_argument("--cache", type=CacheMode, choices=list(CacheMode), default=CacheMode.READ_WRITE)
    parser.add_argument("--request-id", default="", help="a repeated id gets the first answer again")
    _add_hint_flags(parser.add_argument_group("hints to the cache"))
    _add_sampling_flags(parser.add_argument_group("sampling"))
    parser.set_defaults(run=run)


def _add_hint_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--session", default="", metavar="ID", help="conversation or agent run that it belongs to")
    group.add_argument("--session-end", action="store_true", help="the session ends with this request")
    group.add_argument("--no-store", action="store_true", help="store nothing of it")
    group.add_argument("--ttl", type=seconds, metavar="TIME", help="drop its blocks after that time without use: 10m")


def _add_sampling_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--temperature", type=float, help="0 is greedy, the default")
    group.add_argument("--top-p", type=float)
    group.add_argument("--top-k", type=count_of)
    group.add_argument("--seed", type=count_of, help="assigned where absent")
    group.add_argument("--max-tokens", type=count_of)
    group.add_argument("--min-tokens", type=count_of)
    group.add_argument("--stop", action="append", default=[], metavar="TEXT", help="ends the answer; repeatable")
    group.add_argument("--stop-token-id", action="append", default=[], type=count_of, metavar="ID", help="repeatable")
    group.add_argument("--ignore-eos", action="store_const", const=True, help="go on after the end of the text")
    group.add_argument("-n", "--num-samples", type=count_of, metavar="N", help="independent samples")


def run(args: argparse.Namespace) -> int:
    """Sends the request. Raises StemcacheError."""
    request = _request(args)
    with tenant_client(args) as client:
        if args.json:
            print_json(client.generate(request))
        elif (args.num_samples or 1) > 1:
            _print_samples(client.generate(request), args.verbose)
        else:
            _stream(client, request, args.verbose)
    return ExitCode.OK


def _request(args: argparse.Namespace) -> GenerationRequest:
    return GenerationRequest(
        prompt=prompt_of(args),
        sampling=Sampling(
            temperature=args.temperature,
            top_p=args.top_p,
            top_k=args.top_k,
            seed=args.seed,
            max_tokens=args.max_tokens,
            min_tokens=args.min_tokens,
            stop=tuple(args.stop),
            stop_token_ids=tuple(args.stop_token_id),
            ignore_eos=args.ignore_eos,
            num_samples=args.num_samples,
        ),
        model=args.model,
        cache_mode=args.cache,
        partition=args.partition,
        request_id=args.request_id,
        hints=CacheHints(args.session, args.session_end, args.no_store, args.ttl),
    )


def _stream(client: StemcacheClient, request: GenerationRequest, is_verbose: bool) -> None:
    begin_s, first_s = time.monotonic(), 0.0
    route: Route | None = None
    for event in client.stream(request):
        match event:
            case Delta():
                first_s = first_s or time.monotonic() - begin_s
                print(event.text, end="", flush=True)
            case GenerationFinished():
                print(flush=True)
                if is_verbose and route is not None:
                    print_details(event.usage, event.timings, route)
                else:
                    _print_summary(event.usage, f"first token after {first_s:.2f} s{_losses(event.timings)}")
            case GenerationStarted():
                route = event.route


def _print_samples(generation: Generation, is_verbose: bool) -> None:
    for sample in generation.completions:
        print(f"--- sample {sample.sample_index} ({sample.finish_reason})\n{sample.text}")
    if is_verbose:
        print_details(generation.usage, generation.timings, generation.route)
    else:
        _print_summary(generation.usage, f"seed {generation.seed}{_losses(generation.timings)}")


def _losses(timings: Timings) -> str:
    """What the request lost to others, where it lost something that a reader would notice."""
    parts = []
    if timings.queue_s >= NOTICEABLE_S:
        parts.append(f"{timings.queue_s:.2f} s in the queue")
    if timings.preemptions:
        parts.append(f"{timings.preempted_s:.2f} s preempted ({timings.preemptions} times)")
        parts.append(f"{timings.recompute_s:.2f} s to compute {timings.recomputed_tokens} tokens again")
    if timings.swap_s > 0:
        parts.append(f"{timings.swap_s:.2f} s for blocks from a lower tier")
    return f"; lost {', '.join(parts)}" if parts else ""


def _print_summary(usage: Usage, rest: str) -> None:
    if sys.stderr.isatty():
        print(
            f"[{usage.prompt_tokens} prompt tokens, {usage.cached_tokens} of them cached"
            f"{below_device(usage.cached_by_tier)}; "
            f"{usage.completion_tokens} made; {rest}]",
            file=sys.stderr,
        )
