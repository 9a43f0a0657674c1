"""Eviction policies; see `cache_store/policy.py`."""
