"""The demo's course: start everything, make two tenants, ask, compare, stop everything."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from cache_store.errors import StemcacheError
from services.client import AdminClient, Chat, StemcacheClient
from services.cluster.data_folder import DataFolder
from services.cluster.launch import LaunchOptions, RunningSystem, running_system
from services.cluster.stop_signals import StopSignals
from services.demo.handbook import FIRST_QUESTION, FOLLOW_UP_QUESTION, HANDBOOK
from services.demo.requests import Answer, ask, ask_uncached_everywhere
from services.demo.screen import Screen
from services.demo.verdicts import Answers, judge
from services.user_settings import UserSettings

NUM_WORKERS = 2


def main() -> int:
    """Runs the demo; 0 where every claim held. Everything that it started is gone when it returns."""
    screen = Screen()
    begin_s = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="stemcache-demo-") as folder, StopSignals() as stop:
            holds = _run(_options(Path(folder)), stop, screen)
    except StemcacheError as error:
        print(f"stemcache: error: {error}", file=sys.stderr)
        return 1
    screen.say(f"everything has stopped; the demo took {time.monotonic() - begin_s:.0f} s")
    return 0 if holds else 1


def _options(folder: Path) -> LaunchOptions:
    return LaunchOptions(
        folder=DataFolder(folder),
        cache_dir=UserSettings.load().cache_dir,
        num_workers=NUM_WORKERS,
        port=0,
        admin_port=0,
    )


def _run(options: LaunchOptions, stop: StopSignals, screen: Screen) -> bool:
    with ExitStack() as stack:
        with screen.working("Starting Valkey, Ray, two workers and a router"):
            system = stack.enter_context(running_system(options, stop, screen.step))
        screen.say(f"Serving {system.model} with {NUM_WORKERS} workers on {system.address}.")
        with screen.working("Asking"):
            answers = _ask(system, stop, screen)
        screen.say("")
        screen.show_answers(answers.table)
        screen.say("")
        verdicts = judge(answers, NUM_WORKERS)
        screen.show_verdicts(verdicts)
        cold, warm = answers.first.ttft_s, answers.follow_up.ttft_s
        screen.say(f"\nThe first token came {cold / warm:.0f} times sooner with the prefix cached.")
        screen.say(f"acme asked: {FIRST_QUESTION}\nand was told: {answers.first.text.strip()} …\n")
        with screen.working("Stopping everything"):
            stack.close()
    return all(verdict.holds for verdict in verdicts)


def _ask(system: RunningSystem, stop: StopSignals, screen: Screen) -> Answers:
    first, follow_up = Chat.of(FIRST_QUESTION, HANDBOOK), Chat.of(FOLLOW_UP_QUESTION, HANDBOOK)
    with (
        AdminClient(system.admin_address, system.admin_token) as admin,
        StemcacheClient(system.address, _key(admin, "acme")) as acme,
        StemcacheClient(system.address, _key(admin, "globex")) as globex,
    ):

        def asked(client: StemcacheClient, label: str, chat: Chat) -> Answer:
            stop.check()
            screen.step(label)
            return ask(client, label, chat)

        return Answers(
            first=asked(acme, "acme, first request", first),
            follow_up=asked(acme, "acme, follow-up", follow_up),
            other_tenant=asked(globex, "globex, the same prompt", first),
            other_repeated=asked(globex, "globex, once more", first),
            repeated=asked(acme, "acme, once more", first),
            uncached=_ask_uncached(acme, first, stop, screen),
        )


def _ask_uncached(client: StemcacheClient, chat: Chat, stop: StopSignals, screen: Screen) -> Mapping[str, Answer]:
    stop.check()
    screen.step("the same past the cache, on every worker")
    return ask_uncached_everywhere(client, chat, NUM_WORKERS)


def _key(admin: AdminClient, tenant: str) -> str:
    admin.create_tenant(tenant)
    return admin.create_api_key(tenant).secret
