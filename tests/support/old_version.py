"""Runs a module as if it spoke the worker protocol before this one: `python -m tests.support.old_version MODULE`.

The number is all that is old: whether the two sides would understand each other's messages is not asked here.
"""

from __future__ import annotations

import runpy
import sys

import cache_store.registry

OLD = cache_store.registry.PROTOCOL_VERSION - 1

if __name__ == "__main__":
    cache_store.registry.PROTOCOL_VERSION = OLD  # before anybody takes it over
    module = sys.argv.pop(1)
    runpy.run_module(module, run_name="__main__", alter_sys=True)
