"""Headless Chromium, as Debian installs it, under Playwright's control."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Browser, async_playwright

NO_CHROMIUM = "no Chromium is on the PATH"


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    """A browser of its own; skips where there is none, which in CI fails the run."""
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        pytest.skip(NO_CHROMIUM)
    async with async_playwright() as playwright:
        # without its sandbox, which needs rights that a container's root has not: it sees our own page only
        started = await playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield started
        await started.close()
