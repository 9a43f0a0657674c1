"""A real Prometheus on loopback, and questions to it."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import urllib.parse
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.scrapes import fetch

NO_PROMETHEUS = "no prometheus and promtool on the PATH"

needs_prometheus = pytest.mark.skipif(
    not (shutil.which("prometheus") and shutil.which("promtool")), reason=NO_PROMETHEUS
)

_CONFIG = """
global: {{scrape_interval: 250ms, scrape_timeout: 250ms, evaluation_interval: 250ms}}
rule_files: [{rules}]
scrape_configs:
  - job_name: stemcache
    http_sd_configs: [{{url: "http://{router}/targets", refresh_interval: 1s}}]
"""


@dataclass(frozen=True)
class Prometheus:
    """One that runs."""

    address: str

    async def get(self, path: str, **query: str) -> Any:
        """What its API says. Raises AssertionError where it does not succeed."""
        text = await fetch(self.address, f"/api/v1/{path}?{urllib.parse.urlencode(query)}", version="1.0")
        answer = json.loads(text)
        assert answer["status"] == "success", answer
        return answer["data"]

    async def ask(self, expression: str) -> list[Any]:
        """The series that an expression gives now."""
        found: list[Any] = (await self.get("query", query=expression))["result"]
        return found


@asynccontextmanager
async def scraping(router: str, rules: Path, folder: Path) -> AsyncIterator[Prometheus]:
    """One that scrapes what the router names, until the block ends."""
    config = folder / "prometheus.yml"
    config.write_text(_CONFIG.format(rules=rules, router=router))
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    process = await asyncio.create_subprocess_exec(
        "prometheus",
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
        "--log.level=error",
    )
    try:
        await _until_ready(address)
        yield Prometheus(address)
    finally:
        process.terminate()
        await process.wait()


async def _until_ready(address: str) -> None:
    async with asyncio.timeout(30):
        while True:
            try:
                await fetch(address, "/-/ready", version="1.0")
            except (OSError, AssertionError):
                await asyncio.sleep(0.05)
            else:
                return
