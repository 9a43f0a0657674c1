"""Tenants files: what they may say, and how what is wrong is told."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from cache_store.errors import InvalidRequestError
from services.loadtest.tenants_file import TenantEntry, read_tenants_file
from services.loadtest.workloads import WorkloadKind

TOML = """
[acme]
weight = 2
rate = 4
workload = "shared-prefix"
prefix_len = 64
key_env = "ACME_KEY"
quota = { min = "25%", weight = 2 }
[globex]
concurrency = 8
workload = "random"
"""


def test_a_table_is_a_tenant(tmp_path: Path) -> None:
    (tmp_path / "tenants.toml").write_text(TOML)
    assert read_tenants_file(tmp_path / "tenants.toml") == (
        TenantEntry(
            "acme",
            weight=2.0,
            rate=4.0,
            workload=WorkloadKind.SHARED_PREFIX,
            parameters={"prefix_len": 64},
            key_env="ACME_KEY",
            quota={"min": "25%", "weight": 2},
        ),
        TenantEntry("globex", concurrency=8, workload=WorkloadKind.RANDOM),
    )


def test_json_says_the_same(tmp_path: Path) -> None:
    (tmp_path / "tenants.json").write_text(json.dumps({"acme": {"rate": 1, "zipf": 2}}))
    assert read_tenants_file(tmp_path / "tenants.json")[0].parameters == {"zipf": 2}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "has no tenants"),
        ("[acme", "cannot be parsed"),
        ("acme = 1", "acme is 1; a table is needed"),
        ("[a]\nrates = 1", "rates is unknown; known are"),
        ("[a]\nrate = 0", "rate is 0; it is above 0"),
        ("[a]\nrate = true", "rate is True; a number is needed"),
        ("[a]\nrate = 1\nconcurrency = 1", "give one of them"),
        ("[a]\nconcurrency = 1.5", "a whole number is needed"),
        ("[a]\nconcurrency = 99999999", "concurrency is 1e+08; it is at most 16,384"),
        ("[a]\nnum_prompts = inf", "num_prompts is inf; it is at most 1,000,000"),
        ('[a]\nkey = "k"\nkey_env = "K"', "give one of key, key_env and key_file"),
        ('[a]\nworkload = "what"', "known are prefix-repetition"),
        ('[a]\nprefix_len = "long"', "prefix_len is 'long'; it is like 256"),
        ("[a]\nquota = { most = 1 }", "it may have min, max"),
        ("[a]\nkey = 1", "key is 1; text is needed"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "tenants.toml").write_text(text)
    with pytest.raises(InvalidRequestError) as raised:
        read_tenants_file(tmp_path / "tenants.toml")
    assert told in str(raised.value)


@pytest.mark.parametrize(("name", "told"), [("none.toml", "cannot be read"), ("tenants.yaml", "neither .toml nor")])
def test_other_files_are_refused(tmp_path: Path, name: str, told: str) -> None:
    (tmp_path / "tenants.yaml").write_text("a: 1")
    with pytest.raises(InvalidRequestError, match=told):
        read_tenants_file(tmp_path / name)


def test_the_example_names_no_tenant_that_the_readme_makes() -> None:
    made = set(re.findall(r"stemcache tenants create (\w+)", Path("README.md").read_text()))
    named = {each.tenant for each in read_tenants_file(Path("infra/loadtest/two-tenants.toml"))}
    assert "acme" in made
    assert not made & named
