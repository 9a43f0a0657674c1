"""Reads a folder of results and writes report.html and its charts as PNG files into it. Keeps no state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cache_store.errors import PreconditionError
from services.loadtest.isolation.record import IsolationRecord, read_isolation
from services.loadtest.records import CacheOutcome
from services.loadtest.reporting import run_tables
from services.loadtest.reporting.html_text import section, share, table, text
from services.loadtest.reporting.isolation_section import isolation_section, isolation_sheets
from services.loadtest.reporting.marks import Sheet
from services.loadtest.reporting.page import Page, Tile, charts, page
from services.loadtest.reporting.png import write_png
from services.loadtest.reporting.request_charts import (
    hit_rate_over_time,
    ttft_by_length,
    ttft_cdf,
    ttft_over_time,
)
from services.loadtest.reporting.server_charts import occupancy, requests_over_time
from services.loadtest.reporting.spike_table import spike_section
from services.loadtest.reporting.spikes import Spike, SpikeKind, spikes
from services.loadtest.reporting.sweep_charts import throughput_latency
from services.loadtest.result import Result
from services.loadtest.results_folder import RESULT, SUMMARY, SWEEP, Run, read_result, read_run, read_sweep
from services.version import VERSION

REPORT = "report.html"


@dataclass(frozen=True, slots=True)
class Report:
    """A page and its charts."""

    content: Page
    sheets: tuple[Sheet, ...]


def write_report(folder: Path) -> Path:
    """Reports on a run, a sweep (and each of its points) or an isolation test. The page's path.

    Raises InvalidRequestError for files that cannot be read, PreconditionError for a folder of something else.
    """
    report = read_report(folder)
    for sheet in report.sheets:
        write_png(sheet, folder / f"{sheet.name}.png")
    if (folder / SWEEP).exists():
        for point in read_sweep(folder).points:
            write_report(folder / point.folder)
    path = folder / REPORT
    path.write_text(page(report.content), encoding="utf-8")
    return path


def read_report(folder: Path) -> Report:
    """The report of a folder, unwritten. Raises as `write_report` does."""
    if (folder / SWEEP).exists():
        return _sweep_report(folder)
    isolation = read_isolation(folder)
    if (folder / RESULT).exists():
        return _run_report(read_run(folder), isolation)
    if isolation is not None:
        return _isolation_report(isolation)
    raise PreconditionError(
        f"{folder} holds no results ({RESULT}, {SWEEP}); give a folder that `stemcache loadtest run` has written"
    )


def _run_report(run: Run, isolation: IsolationRecord | None) -> Report:
    found = spikes(run.requests)
    answered = any(row.completed and row.ttft_s is not None for row in run.requests)
    request_sheets = _request_sheets(run, found) if answered else []
    server_sheets = [*occupancy(run.samples), requests_over_time(run.samples)] if len(run.samples) > 1 else []
    result = run.result
    summary = run_tables.latencies(result)
    left, right = run_tables.throughput(result), run_tables.prefix_cache(result)
    columns = f'<div class="cols"><div>{left}</div><div>{right}</div></div>'
    body = (
        section("Requests", charts(request_sheets))
        + (isolation_section(isolation) if isolation else "")
        + spike_section(found, len(run.requests))
        + section("The system", charts(server_sheets))
        + section("Figures", summary, columns, note="Latencies count from when a request was meant to be sent.")
        + section("Tenants", run_tables.groups("tenant", result.tenants))
        + section("Workers", run_tables.groups("worker", result.workers))
        + section("Errors", _errors(run))
        + section("Conditions", run_tables.conditions(run.conditions))
        + _text_block(run.folder)
    )
    content = Page(_title(result), _subtitle(result), _tiles(result), result.warnings, body, _footer())
    sheets = (*request_sheets, *server_sheets, *(isolation_sheets(isolation) if isolation else ()))
    return Report(content, sheets)


def _request_sheets(run: Run, found: Sequence[Spike]) -> list[Sheet]:
    causes = {spike.row.index: str(spike.cause) for spike in found if spike.kind is SpikeKind.FIRST_TOKEN}
    return [
        ttft_cdf(run.requests),
        ttft_by_length(run.requests),
        ttft_over_time(run.requests, causes),
        hit_rate_over_time(run.requests),
    ]


def _sweep_report(folder: Path) -> Report:
    sweep = read_sweep(folder)
    results = [read_result(folder / point.folder) for point in sweep.points]
    if not results:
        raise PreconditionError(f"{folder} holds a sweep without points; nothing to report")
    sheets = tuple(throughput_latency(results, metric) for metric in ("ttft", "tpot", "e2el"))
    links = "".join(
        f'<li><a href="{text(point.folder)}/{REPORT}">{text(point.folder)}</a></li>' for point in sweep.points
    )
    body = section("Throughput and latency", charts(sheets)) + section("Points", _points(results), f"<ul>{links}</ul>")
    first = results[0]
    warnings = [
        f"{point.folder}: {each}" for point, r in zip(sweep.points, results, strict=True) for each in r.warnings
    ]
    best = max(results, key=lambda each: each.request_throughput)
    tiles = (
        Tile(f"{len(results)}", "points"),
        Tile(f"{best.request_throughput:,.2f}/s", "most requests per second"),
        Tile(f"{max(each.output_throughput for each in results):,.0f}/s", "most output tokens per second"),
    )
    title = f"Sweep of {sweep.varied.replace('_', ' ')}: {first.workload} on {first.model_id}"
    return Report(Page(title, _subtitle(first), tiles, warnings, body, _footer()), sheets)


def _points(results: Sequence[Result]) -> str:
    rows = [
        (
            "–" if each.max_concurrency is not None else f"{each.request_rate:g}",
            each.max_concurrency or "–",
            f"{each.request_throughput:,.2f}",
            f"{each.output_throughput:,.1f}",
            *(f"{each.latencies[m].p(p):,.1f}" for m in ("ttft", "tpot", "e2el") for p in (50, 99)),
            share(each.prefix_cache.hit_rate),
            f"{each.failed:,}",
        )
        for each in results
    ]
    headings = (
        "sent/s", "callers", "req/s", "tok/s", "TTFT p50", "p99", "TPOT p50", "p99", "E2EL p50", "p99",
        "hit rate", "failed",
    )  # fmt: skip
    return table(headings, rows, 0)


def _isolation_report(record: IsolationRecord) -> Report:
    tiles = [Tile(str(record.outcome), "outcome")]
    tiles += [Tile(f"{each.across_bound:.4f}", f"AUC at most, {each.variant}") for each in record.variants]
    title = f"Isolation test: {record.model}"
    content = Page(title, f"limit {record.limit:g}", tiles, (), isolation_section(record), _footer())
    return Report(content, tuple(isolation_sheets(record)))


def _title(result: Result) -> str:
    return f"{result.workload} on {result.model_id}"


def _subtitle(result: Result) -> str:
    started = datetime.strptime(result.date, "%Y%m%d-%H%M%S").replace(tzinfo=UTC)
    return f"Load test of {started:%Y-%m-%d %H:%M} UTC, {result.backend}, {result.duration:,.0f} s"


def _tiles(result: Result) -> list[Tile]:
    cache = result.prefix_cache
    tiles = [
        Tile(f"{result.completed:,}", f"requests completed, {result.failed:,} failed"),
        Tile(f"{result.request_throughput:,.2f}/s", f"requests; {result.output_throughput:,.0f} output tokens/s"),
        Tile(share(cache.hit_rate), "hit rate" + _of_at_most(cache.upper_bound_rate)),
    ]
    for outcome, name in ((CacheOutcome.HIT, "hits"), (CacheOutcome.MISS, "misses")):
        found = cache.outcomes.get(outcome)
        if found and found.ttft.count:
            tiles.append(Tile(f"{found.ttft.median_ms:,.0f} ms", f"median time to first token, {name}"))
    if (ttft := result.latencies.get("ttft")) and ttft.count:
        tiles.append(Tile(f"{ttft.p(99):,.0f} ms", "p99 of the time to first token"))
    if result.request_goodput is not None:
        tiles.append(Tile(f"{result.request_goodput:,.2f}/s", "requests within all limits"))
    return tiles


def _of_at_most(bound: float | None) -> str:
    return "" if bound is None else f", of at most {share(bound)}"


def _errors(run: Run) -> str:
    counts: dict[tuple[str, str], int] = {}
    for row in run.requests:
        if not row.completed:
            counts[row.status, row.error] = counts.get((row.status, row.error), 0) + 1
    ranked = sorted(counts.items(), key=lambda each: -each[1])[:20]
    return table(("status", "what the server said", "requests"), [(*key, f"{n:,}") for key, n in ranked], 2)


def _text_block(folder: Path) -> str:
    path = folder / SUMMARY
    if not path.exists():
        return ""
    return f"<details><summary>as text</summary><pre>{text(path.read_text(encoding='utf-8'))}</pre></details>"


def _footer() -> str:
    return f"stemcache {VERSION}; the charts lie beside this page as PNG files"
