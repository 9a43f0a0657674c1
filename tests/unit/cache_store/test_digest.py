from __future__ import annotations

import subprocess
import sys

from cache_store.digest import chain
from cache_store.tokens import pack, part
from tests.support.domains import make_domain

GOLDEN = [
    "956fb1d8fc76d4eb8a5b5b7b2765e2d5",
    "3fca76f509a59df6588faadc0b6d7856",
]
PROGRAM = """
from cache_store.digest import chain
from cache_store.tokens import pack
from tests.support.domains import make_domain
print(*[d.hex() for d in chain(make_domain(), pack(range(1000, 1040)), 16)])
"""


def test_golden_vectors() -> None:
    assert [digest.hex() for digest in chain(make_domain(), pack(range(1000, 1040)), 16)] == GOLDEN


def test_other_processes_compute_the_same(monkeypatch) -> None:
    out = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={"PYTHONHASHSEED": "77", "PYTHONPATH": ":".join(p for p in sys.path if p)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert out.split() == GOLDEN


def test_a_digest_names_everything_before_it() -> None:
    a, b = pack([1, 2, 3, 4]), pack([9, 2, 3, 4])
    assert chain(make_domain(), a, 2)[1] != chain(make_domain(), b, 2)[1]


def test_partial_blocks_have_no_digest() -> None:
    tokens = pack(range(33))
    assert len(chain(make_domain(), tokens, 16)) == 2
    assert chain(make_domain(), part(tokens, 0, 15), 16) == []


def test_domains_never_share_a_digest() -> None:
    tokens = pack(range(64))
    assert not set(chain(make_domain("acme"), tokens, 16)) & set(chain(make_domain("globex"), tokens, 16))
