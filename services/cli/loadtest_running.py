"""Carries out plans: opens what they need, runs them under Ctrl-C, writes their folders."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import uvloop

from cache_store.errors import InvalidRequestError, PreconditionError
from services.cli.connection import admin_client, reach_of
from services.cli.loadtest_plan import Load, plan_of
from services.cli.loadtest_progress import Progress
from services.client import AdminClient
from services.loadtest.backends import Backend
from services.loadtest.json_codec import to_json
from services.loadtest.lifecycle import Measured, Run
from services.loadtest.results_folder import (
    CONDITIONS,
    PRIME,
    REQUESTS,
    RESULT,
    SERVER_METRICS,
    SUMMARY,
    SWEEP,
    write_document,
    write_rows,
)
from services.loadtest.run_plan import RunPlan
from services.loadtest.stemcache_backend import StemcacheBackend
from services.loadtest.tenant_access import access
from services.loadtest.text_block import text_block

RESULTS = Path("loadtest-results")


@dataclass(frozen=True, slots=True)
class Opened:
    """What runs are made with."""

    args: argparse.Namespace
    admin: AdminClient | None
    keys: dict[str, str]

    def measure(self, loads: Sequence[Load]) -> Measured:
        """One run, with a partition of its own."""
        plan = plan_of(self.args, loads, self.keys)
        measured: Measured = uvloop.run(_measure(self.args, plan, self.admin))
        return measured


@contextmanager
def opened(args: argparse.Namespace, loads: Sequence[Load]) -> Iterator[Opened]:
    """Finds the system, and makes the tenants that are to be made."""
    kind = args.target[0]
    if kind == "openai":
        yield Opened(args, None, {each.wanted.tenant: each.wanted.api_key for each in loads})
        return
    if kind != "stemcache" or len(args.target) > 1:
        raise InvalidRequestError("target", f"--target is {' '.join(args.target)}; write stemcache, or openai URL")
    admin = _admin(args)
    try:
        with access([each.wanted for each in loads], admin, lambda text: print(text, file=sys.stderr)) as keys:
            yield Opened(args, admin, dict(keys))
    finally:
        if admin:
            admin.close()


async def _measure(args: argparse.Namespace, plan: RunPlan, admin: AdminClient | None) -> Measured:
    backend = _backend(args, plan)
    stop = asyncio.Event()
    try:
        with _interrupts(stop):
            run = Run(plan, backend, admin.status if admin else None, Progress(plan.num_prompts).screen())
            return await run.measure(stop)
    finally:
        await backend.close()


def _backend(args: argparse.Namespace, plan: RunPlan) -> Backend:
    if args.target[0] == "openai":
        if len(args.target) != 2:
            raise InvalidRequestError("target", "--target openai needs a URL, such as http://127.0.0.1:8000")
        from services.loadtest.openai_backend import OpenAiBackend  # imports an HTTP library, which only this needs

        form = args.prompt_form
        return OpenAiBackend(args.target[1], args.model, args.tokenizer, form, args.request_timeout)
    reach = reach_of(args)
    return StemcacheBackend(reach.address, plan.tenants[0].api_key, args.model, args.request_timeout, reach.trust)


def _admin(args: argparse.Namespace) -> AdminClient | None:
    """The operator's API, where it is named or a system runs here; else None."""
    if args.admin_address or args.admin_token_file:
        return admin_client(args)
    try:
        return admin_client(args)
    except PreconditionError:
        return None


@contextmanager
def _interrupts(stop: asyncio.Event) -> Iterator[None]:
    """The first Ctrl-C asks to stop, and everything is still written; a second one ends the process at once."""
    loop = asyncio.get_running_loop()
    before = signal.getsignal(signal.SIGINT)

    def interrupted() -> None:
        stop.set()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, interrupted)
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
        if not stop.is_set():
            signal.signal(signal.SIGINT, before)


def result_folder(args: argparse.Namespace, name: str) -> Path:
    """A new folder that can be written, before anything is measured.

    Raises InvalidRequestError where the one that is named holds a run or cannot be written.
    """
    if args.result_dir is not None:
        folder: Path = args.result_dir
        if (folder / RESULT).exists() or (folder / SWEEP).exists():
            raise InvalidRequestError("result-dir", f"{folder} holds a run; name another folder, or remove it")
    else:
        stem = "-".join(filter(None, (time.strftime("%Y%m%d-%H%M%S", time.gmtime()), name, args.label)))
        numbered = (RESULTS / (f"{stem}-{number}" if number else stem) for number in range(1_000))
        folder = next(each for each in numbered if not each.exists())
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        raise InvalidRequestError("result-dir", f"{folder} cannot be written: {error.strerror}") from error


@contextmanager
def claimed(folder: Path) -> Iterator[Path]:
    """Takes the folder away again where nothing came of the run."""
    try:
        yield folder
    except BaseException:
        with suppress(OSError):  # it holds something
            folder.rmdir()
        raise


def write_run(folder: Path, measured: Measured, metrics: tuple[str, ...]) -> str:
    """Writes everything; the text for people."""
    text = text_block(measured.result, metrics)
    write_rows(folder / REQUESTS, measured.rows)
    if measured.prime_rows:
        write_rows(folder / PRIME, measured.prime_rows)
    if measured.samples:
        write_rows(folder / SERVER_METRICS, measured.samples)
    write_document(folder / CONDITIONS, to_json(measured.conditions))
    write_document(folder / RESULT, measured.result.to_json())
    (folder / SUMMARY).write_text(text + "\n", encoding="utf-8")
    return text


def print_run(args: argparse.Namespace, folder: Path, measured: Measured, text: str) -> None:
    """The result on standard output."""
    if args.json:
        print(json.dumps(measured.result.to_json(), indent=2))
    else:
        print(text)
        print(f"written to {folder}")
