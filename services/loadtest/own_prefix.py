"""Tokens of a run's own before all prompts of a tenant: for servers that keep no partitions apart.

What was cached by an earlier run with the same seed begins otherwise and cannot be hit; what this run's prompts share
with each other stays shared. Pure.
"""

from __future__ import annotations

from dataclasses import replace

from cache_store.tokens import PackedTokens, count
from services.loadtest.sessions import Session, Workload

OWN_TOKENS = 16


def with_own_prefix(workload: Workload, own: PackedTokens) -> Workload:
    """The same workload, all of whose sessions begin with `own`."""
    return replace(
        workload,
        sessions=(_begun(session, own) for session in workload.sessions),
        primes=tuple(PackedTokens(own + each) for each in workload.primes),
    )


def _begun(session: Session, own: PackedTokens) -> Session:
    first, *others = session.turns
    begun = replace(first, parts=(own, *first.parts))
    prefix_tokens = session.prefix_tokens + count(own) if session.prefix_group is not None else 0
    return replace(session, turns=(begun, *others), prefix_tokens=prefix_tokens)
