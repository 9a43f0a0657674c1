"""BENCHMARKS.md as text, of results and nothing else: the same results make the same page, wherever it is made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tests.bench.machine import ROOT
from tests.bench.page.catalogue import BENCHES, Bench
from tests.bench.page.results import Result, ResultError

PAGE = ROOT / "BENCHMARKS.md"
_BUSY_LOAD = 0.5
"""Load average by core before a run, above which something else was running."""

_HEAD = """# Benchmarks

Written by `make bench-all` out of the results in `tests/bench/results/`; nothing here is written by hand, and a test
makes the page again. Each table tells its command, date, commit, machine, versions and repeats. The commands run on
your machine too: `make bench-peers` installs the others that are measured beside. Machines differ and are noisy, so
read ratios within a table, which were measured in one run, before figures across tables. What is not there is named,
here and in its place."""


def render(results: Mapping[str, Result], benches: Sequence[Bench] = BENCHES) -> str:
    """The page. Raises ResultError where a result is of no known benchmark."""
    if unknown := set(results) - {bench.name for bench in benches}:
        raise ResultError(f"there is no benchmark {', '.join(sorted(unknown))}")
    newest = max((result.commit_number for result in results.values()), default=0)
    lacking = list(_lacking(results, benches, newest))
    parts = [_HEAD, "## What is lacking", "\n".join(f"* {line}" for line in lacking) or "Nothing."]
    for bench in benches:
        parts += [f"## {bench.title}", bench.what]
        if bench.name in results:
            parts += [bench.tables(results[bench.name]), _conditions(bench, results[bench.name], newest)]
        else:
            parts.append(f"**No result.** `make bench-all OPTIONS='--only {bench.name}'` makes it.")
    return "\n\n".join(parts) + "\n"


def _lacking(results: Mapping[str, Result], benches: Sequence[Bench], newest: int) -> Iterator[str]:
    for bench in benches:
        result = results.get(bench.name)
        if result is None:
            yield f"{bench.title}: no result"
            continue
        for peer, why in result.absent_peers.items():
            yield f"{bench.title}: {peer} {why}"
        for mark in _marks(bench, result, newest):
            yield f"{bench.title}: {mark}"


def _marks(bench: Bench, result: Result, newest: int) -> Iterator[str]:
    """What makes its figures doubtful."""
    if behind := newest - result.commit_number:
        yield f"older code, measured {behind} commits before the newest result of this page"
    if changed := result.before["changed_files"]:
        yield f"measured with {changed} files that were not committed"
    load = result.before["load"][0]
    if not bench.is_slow and load > _BUSY_LOAD * result.before["cores"]:
        yield f"the machine was busy when it began (load average {load:g})"


def _conditions(bench: Bench, result: Result, newest: int) -> str:
    before, after = result.before, result.after
    loads = (", ".join(f"{value:g}" for value in each["load"]) for each in (before, after))
    load_before, load_after = loads
    versions = [f"{name} {version}" for name, version in sorted(result.versions.items())]
    peers = [told if name in result.absent_peers else f"{name} {told}" for name, told in _peers(result)]
    lines = [
        f"`make bench-all OPTIONS='--only {bench.name}'`, which runs `{result.command}`",
        f"{before['time'][:16].replace('T', ' ')} UTC, {result.took_s:,.0f} s; commit `{before['commit'][:12]}`",
        f"{before['cores']} cores {before['cpu']}, {before['memory_gib']:g} GiB, Linux {before['kernel']}, Python "
        f"{before['python']}; load average {load_before} before, {load_after} after",
        f"Repeats: {bench.repeats(result)}",
    ]
    if versions:
        lines.append(f"Versions: {', '.join(versions)}")
    if peers:
        lines.append(f"Peers: {', '.join(peers)}")
    lines += [f"**{mark[0].upper()}{mark[1:]}**" for mark in _marks(bench, result, newest)]
    return "\n".join(f"* {line}" for line in lines)


def _peers(result: Result) -> Iterator[tuple[str, str]]:
    for name, told in result.peers.items():
        yield name, f"**{name} {told}**" if name in result.absent_peers else told
