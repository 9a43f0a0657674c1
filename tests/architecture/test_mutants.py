"""Every known error still fits the code: what it changes is there once, and so is the test that notices it."""

from __future__ import annotations

import pytest

from tests.mutants.__main__ import ALL, ROOT
from tests.mutants.catalogue import Mutant


@pytest.mark.parametrize("mutant", ALL, ids=lambda mutant: mutant.name)
def test_a_known_error_fits_the_code(mutant: Mutant) -> None:
    assert (ROOT / mutant.file).read_text().count(mutant.before) == 1, f"{mutant.file} has changed"
    path, _, name = mutant.test.partition("::")
    name = name.partition("[")[0].split("::")[-1]
    assert (ROOT / path).exists(), f"{path} is gone"
    assert not name or name in (ROOT / path).read_text(), f"{path} has no {name} any more"


def test_names_are_different() -> None:
    names = [mutant.name for mutant in ALL]
    assert len(set(names)) == len(names)
