"""Known errors of what survives outages: stores that were away, clocks that are set, keys revoked meanwhile."""

from __future__ import annotations

from tests.mutants.catalogue import Mutant

VIEW = "tests/unit/services/router/test_registry_view.py"
PURGES = "tests/unit/worker/test_rpc_purge.py"
REVOKED = "tests/unit/worker/test_revoked_keys.py"

OUTAGES = (
    Mutant(
        "hasty-loss",
        "workers are lost with the first look at a registry that was away",
        "services/router/registry_view.py",
        "known.seen_s = self._clock.monotonic_s()",
        "pass",
        f"{VIEW}::test_a_registry_that_is_back_without_leases_loses_nobody_at_once",
    ),
    Mutant(
        "own-clock",
        "request tokens expire by the router's clock",
        "services/router/registry_view.py",
        "if known is None or not known.record.clock_unix_s:",
        "if known is None or known.record.clock_unix_s:",
        f"{VIEW}::test_a_request_token_expires_by_the_workers_clock",
    ),
    Mutant(
        "stopped-clock",
        "the worker's clock stands still while the registry is away",
        "services/router/registry_view.py",
        "return known.record.clock_unix_s + self._clock.monotonic_s() - known.record_s",
        "return known.record.clock_unix_s",
        f"{VIEW}::test_a_request_token_expires_by_the_workers_clock",
    ),
    Mutant(
        "following-clock",
        "a worker's own clock follows the wall clock",
        "cache_store/clock.py",
        "return self._clock.monotonic_s() + self._ahead_s",
        "return self._clock.unix_s()",
        "tests/unit/cache_store/test_clock.py::test_a_steady_clock_goes_on_from_where_it_began",
    ),
    Mutant(
        "trusted-router",
        "a worker believes routers that have long missed a revocation",
        "worker/rpc.py",
        "        self.purges.require_current(claims)\n",
        "",
        "tests/integration/test_worker_revoked_keys.py::test_who_has_missed_it_is_sent_elsewhere",
    ),
    Mutant(
        "no-grace",
        "a router is not believed at once where a key was just revoked",
        "worker/rpc_purge.py",
        "self._clock.monotonic_s() - REVOKED_AFTER_S)",
        "self._clock.monotonic_s())",
        f"{PURGES}::test_a_router_that_has_long_missed_that_a_key_was_revoked_is_not_believed",
    ),
    Mutant(
        "shrinking-number",
        "an older number of revoked keys takes the place of a newer one",
        "worker/revoked_keys.py",
        "if not heard or heard[-1][1] < count:",
        "if not heard or heard[-1][1] != count:",
        f"{REVOKED}::test_an_older_number_takes_nothing_back",
    ),
    Mutant(
        "one-router",
        "only the first of several routers is called",
        "services/client/channel.py",
        """return f"ipv{versions.pop()}:{','.join(addresses)}\"""",
        """return f"ipv{versions.pop()}:{addresses[0]}\"""",
        "tests/unit/services/client/test_channel.py::test_calls_go_to_the_first_that_can_be_reached",
    ),
)
