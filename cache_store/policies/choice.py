"""Policies by name, for settings and command lines."""

from __future__ import annotations

from enum import StrEnum

from cache_store.ledger import PolicyMaker
from cache_store.policies.class_aware import ClassAware
from cache_store.policies.lru import Lru


class PolicyKind(StrEnum):
    """Eviction policies that can be chosen."""

    LRU = "lru"
    """Least recently used first."""
    CLASS = "class"
    """By classes of use, learnt online."""


def policy_maker(kind: PolicyKind) -> PolicyMaker:
    """Makes the policy of one tenant."""
    match kind:
        case PolicyKind.LRU:
            return Lru
        case PolicyKind.CLASS:
            return ClassAware
