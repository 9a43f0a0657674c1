"""Every fault holds; a change runs the short course of some of them, the night all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.faults.catalogue import FAULTS, Extent, Fault
from tests.chaos.outcome import details

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault.in_ci], ids=lambda fault: fault.name)
async def test_it_holds(fault: Fault, tmp_path: Path) -> None:
    outcome = await fault.run(tmp_path / "c", Extent.SHORT)
    assert not outcome.failures, details(outcome)


@pytest.mark.nightly
@pytest.mark.alone
@pytest.mark.timeout(900)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
async def test_its_whole_course_holds(fault: Fault, tmp_path: Path) -> None:
    outcome = await fault.run(tmp_path / "c", Extent.WHOLE)
    assert not outcome.failures, details(outcome)
