from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]

SKIPPING = "import pytest\ndef test_it():\n    pytest.skip({reason!r})\n"


@pytest.mark.parametrize(("reason", "status"), [("no CUDA device", 0), ("felt like it", 1)])
def test_only_listed_reasons_pass_in_ci(pytester: pytest.Pytester, monkeypatch, reason: str, status: int) -> None:
    monkeypatch.setenv("CI", "true")
    pytester.makepyfile(SKIPPING.format(reason=reason))
    done = pytester.runpytest_inprocess("-p", "tests.support.allowed_skips")
    assert done.ret == status


def test_elsewhere_any_reason_passes(pytester: pytest.Pytester, monkeypatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    pytester.makepyfile(SKIPPING.format(reason="felt like it"))
    assert pytester.runpytest_inprocess("-p", "tests.support.allowed_skips").ret == 0
