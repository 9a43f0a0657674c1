"""Reads what a process shows to Prometheus, with Prometheus' own parser."""

from __future__ import annotations

import asyncio

from prometheus_client.parser import text_string_to_metric_families

Series = tuple[str, tuple[tuple[str, str], ...]]


async def fetch(address: str, path: str = "/metrics", token: str = "", version: str = "1.1") -> str:
    """The body of a page. Raises AssertionError for another status than 200."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    authorization = f"Authorization: Bearer {token}\r\n" if token else ""
    writer.write(f"GET {path} HTTP/{version}\r\nHost: {address}\r\n{authorization}\r\n".encode())
    async with asyncio.timeout(15):
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    assert head.split(b" ")[1:2] == [b"200"], head
    return body.decode()


class Scrape:
    """One scrape."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.families = list(text_string_to_metric_families(text))
        samples = [sample for family in self.families for sample in family.samples]
        self.values: dict[Series, float] = {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value for sample in samples
        }
        assert len(samples) == len(self.values), "a series is shown twice"

    def of(self, name: str, **labels: str) -> float:
        """The sum of the series of that name that have those labels. Raises AssertionError where there are none."""
        wanted = set(labels.items())
        found = [value for (each, has), value in self.values.items() if each == name and wanted <= set(has)]
        assert found, f"nothing is shown of {name} {labels}"
        return sum(found)

    def labels(self, name: str) -> set[str]:
        """All values of a label."""
        return {value for _, has in self.values for key, value in has if key == name}


async def scrape(address: str, token: str = "") -> Scrape:
    """What the process shows now."""
    return Scrape(await fetch(address, token=token))
