"""report.html out of made-up folders: it needs nothing but itself, shows what there is, and runs nobody's words."""

from __future__ import annotations

import dataclasses
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from PIL import Image

from cache_store.errors import InvalidRequestError, PreconditionError
from services.loadtest.isolation.record import ISOLATION
from services.loadtest.json_codec import to_json
from services.loadtest.reporting.page import page
from services.loadtest.reporting.report import read_report, write_report
from services.loadtest.results_folder import SWEEP, Sweep, SweepPoint, write_document
from tests.support.loadtest_runs import busy_rows, conditions, result, row, write_run_folder

EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>&"
VOID = {"meta", "link", "br", "img", "input", "hr"}


class Reader(HTMLParser):
    """Collects elements and attributes; notices what is not closed."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.open: list[str] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    assert reader.open == []
    return reader


def shown(folder: Path) -> Reader:
    """The page alone: drawing files takes its time."""
    return read(page(read_report(folder).content))


def test_a_run_becomes_a_page_with_its_charts(tmp_path: Path) -> None:
    path = write_report(write_run_folder(tmp_path, busy_rows(200)))
    found = read(path.read_text())
    headings = " ".join(found.words)
    for title in ("Time to first token", "length of the prompt", "Hit rate over time", "Occupancy of the device tier",
                  "Occupancy of the host tier", "Latency spikes", "Conditions"):  # fmt: skip
        assert title in headings
    charts = {each.name for each in tmp_path.glob("*.png")}
    assert charts == {
        "ttft-cdf.png", "ttft-by-length.png", "ttft-over-time.png", "hit-rate-over-time.png", "occupancy-device.png",
        "occupancy-host.png", "requests-over-time.png",
    }  # fmt: skip
    with Image.open(tmp_path / "ttft-cdf.png") as image:
        assert image.width == 1280
        assert len(image.getcolors(1 << 20) or []) > 50, "something is drawn"


def test_it_needs_nothing_from_outside(tmp_path: Path) -> None:
    text = page(read_report(write_run_folder(tmp_path, busy_rows(60))).content)
    found = read(text)
    assert not {"script", "link", "img", "iframe", "object", "base"} & set(found.elements)
    urls = [value for name, value in found.attributes if name in ("src", "href", "action", "xlink:href")]
    assert urls == []
    styles = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    assert "url(" not in "".join(styles)
    assert "@import" not in "".join(styles)
    assert ("http-equiv", "Content-Security-Policy") in found.attributes


def test_other_peoples_words_stay_words(tmp_path: Path) -> None:
    rows = [
        dataclasses.replace(each, tenant=EVIL, worker=EVIL, request_id=EVIL, workload=EVIL) for each in busy_rows(80)
    ]
    rows[3] = row(3, tenant=EVIL, status="INTERNAL", error=EVIL, first_token_s=None)
    rows[7] = row(7, tenant=EVIL, away_s=9.0)
    made = dataclasses.replace(result(rows), workload=EVIL, model_id=EVIL, warnings=(EVIL,), status_codes={EVIL: 1})
    told = conditions(commit=EVIL, settings={EVIL: EVIL}, versions={EVIL: EVIL})
    folder = write_run_folder(tmp_path, rows, made, told)
    (folder / "summary.txt").write_text(EVIL)
    found = shown(folder)
    assert not {"script", "img"} & set(found.elements)
    assert not [name for name, _ in found.attributes if name.startswith("on")]
    assert any(EVIL in each for each in found.words)


def test_a_run_of_which_nothing_came_to_its_end(tmp_path: Path) -> None:
    rows = [
        row(at, status="UNAVAILABLE", error="no worker", first_token_s=None, arrivals_s=(), server=None)
        for at in range(5)
    ]
    made = dataclasses.replace(result([row(0)]), completed=0, failed=5)
    found = shown(write_run_folder(tmp_path, rows, made))
    assert "no worker" in " ".join(found.words)


def test_a_run_of_one_request_without_a_look_at_the_server(tmp_path: Path) -> None:
    folder = write_run_folder(tmp_path, [row(0)])
    (folder / "server_metrics.jsonl").unlink()
    shown(folder)
    assert "occupancy-device" not in {each.name for each in read_report(folder).sheets}


def test_a_sweep_becomes_a_curve_and_a_page_per_point(tmp_path: Path) -> None:
    points = []
    for rate in (1.0, 4.0):
        rows = busy_rows(60, seed=int(rate))
        name = f"rate-{rate:g}"
        write_run_folder(tmp_path / name, rows, dataclasses.replace(result(rows), request_rate=rate))
        points.append(SweepPoint(name, rate, None))
    write_document(tmp_path / SWEEP, to_json(Sweep("request_rate", tuple(points))))
    found = read(write_report(tmp_path).read_text())
    assert {"throughput-ttft.png", "throughput-tpot.png"} <= {each.name for each in tmp_path.glob("*.png")}
    assert [v for name, v in found.attributes if name == "href"] == [f"{p.folder}/report.html" for p in points]
    assert all((tmp_path / point.folder / "report.html").exists() for point in points)


def test_many_requests_do_not_make_a_page_that_no_browser_opens(tmp_path: Path) -> None:
    report = read_report(write_run_folder(tmp_path, busy_rows(6_000)))
    assert len(page(report.content)) < 2_500_000


def test_another_folder_is_refused_with_what_would_work(tmp_path: Path) -> None:
    with pytest.raises(PreconditionError, match="loadtest run"):
        write_report(tmp_path)
    (tmp_path / ISOLATION).write_text("{")
    with pytest.raises(InvalidRequestError, match="no JSON"):
        write_report(tmp_path)


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    folder = write_run_folder(tmp_path, busy_rows(5))
    with (folder / "requests.jsonl").open("a") as file:
        file.write(json.dumps({"index": "six"}) + "\n")
    with pytest.raises(InvalidRequestError, match=r"requests\.jsonl:6"):
        write_report(folder)
