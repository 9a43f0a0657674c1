"""Fixtures that every test may ask for."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read when torch is imported: other tests need the waiting CPUs
os.environ.setdefault("TRITON_INTERPRET", "1")  # read when kernels are imported: GPUs are not needed to test them

settings.register_profile("everyday", deadline=None)
settings.register_profile(
    "nightly",
    deadline=None,
    max_examples=2_000,
    stateful_step_count=80,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("everyday")

pytest_plugins = ["tests.support.redis_servers", "tests.support.allowed_skips"]
