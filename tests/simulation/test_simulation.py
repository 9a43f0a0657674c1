"""Routers, workers and the store of many seeds, with everything that may go wrong; the same seed runs the same way."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.simulation.__main__ import command_of
from tests.simulation.kept_seeds import KEPT_SEEDS
from tests.simulation.plan import FaultKind, make_plan, with_workers_refused
from tests.simulation.world import World, run_plan, run_seed

ROOT = Path(__file__).parents[2]
NUM_SEEDS = 300
NUM_NIGHTLY = 10_000
PART = 25


def require_well(seeds: range | list[int]) -> None:
    """Runs seeds; each of them must do something."""
    for seed in seeds:
        result = run_seed(seed)
        assert result.problem is None, f"{result.problem}\nreplay it: {command_of(seed)}"
        assert result.num_tokens > 0, f"seed {seed} makes no tokens"


@pytest.mark.parametrize("first", range(0, NUM_SEEDS, PART))
def test_all_is_well(first: int) -> None:
    require_well(range(first, first + PART))


@pytest.mark.parametrize("seed", list(KEPT_SEEDS))
def test_seeds_that_once_failed(seed: int) -> None:
    require_well([seed])


def test_workers_that_the_store_refuses_go_on() -> None:
    """No request fails, and nothing wrong comes of it, though nobody renews a lease."""
    for seed in range(5):
        result = run_plan(with_workers_refused(make_plan(seed)), seed)
        assert result.problem is None, f"seed {seed}: {result.problem}"
        assert result.num_tokens > 0


@pytest.mark.nightly
@pytest.mark.parametrize("first", range(NUM_SEEDS, NUM_NIGHTLY, 50))
def test_many_seeds(first: int) -> None:
    require_well(range(first, first + 50))


def test_a_seed_runs_the_same_way_in_every_process() -> None:
    digests = set()
    for hash_seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-m", "tests.simulation", "--seed", "64", "--count", "6", "--digest"],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        digests.add("".join(line for line in done.stdout.splitlines(keepends=True) if "digest" in line))
    assert len(digests) == 1, digests
    assert len(next(iter(digests)).splitlines()) == 6


def test_a_run_leaves_nothing_to_the_next_ones() -> None:
    run_seed(0)
    num_frozen = gc.get_freeze_count()
    run_seed(1)
    gc.collect()
    assert gc.get_freeze_count() == num_frozen, "what is frozen is never freed"
    assert not any(isinstance(each, World) for each in gc.get_objects())


def test_another_seed_runs_another_way() -> None:
    assert len({run_seed(seed).digest for seed in range(3)}) == 3


def test_the_seeds_contain_every_fault() -> None:
    kinds = Counter(fault.kind for seed in range(NUM_SEEDS) for fault in make_plan(seed).faults)
    assert set(kinds) == set(FaultKind)
    assert min(kinds.values()) >= 5
