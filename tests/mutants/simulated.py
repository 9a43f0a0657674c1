"""Known errors of the cluster's protocols that the simulation must find: each within the seeds that CI runs.

The named test runs 25 of the 300 seeds; in those at least one run goes wrong.
"""

from __future__ import annotations

from tests.mutants.catalogue import Mutant

SEEDS = "tests/simulation/test_simulation.py::test_all_is_well"

SIMULATED = (
    Mutant(
        "zombie-lives",
        "a worker that was stopped goes on beside the one that took its place",
        "cache_store/redis_registry.py",
        'raise SupersededError(f"worker {record.worker_id} has a newer incarnation than {record.incarnation}")',
        "return Renewal.KEPT",
        f"{SEEDS}[0]",
    ),
    Mutant(
        "gap-unseen",
        "entries of a stream that are missing leave wrong blocks in a router's copy",
        "cache_store/redis_replica.py",
        "elif entry.before != (follower.mark or _NO_MARK):",
        'elif entry.before == b"never":',
        f"{SEEDS}[0]",
    ),
    Mutant(
        "resumed-from-nothing",
        "a request that goes on elsewhere begins at its prompt again",
        "services/router/attempt.py",
        "prompt=plan.prompt + self._carried.prefix,",
        "prompt=plan.prompt,",
        f"{SEEDS}[0]",
    ),
    Mutant(
        "resumed-too-long",
        "a request that goes on elsewhere makes as many tokens again",
        "services/router/attempt.py",
        "max_tokens=self._job.plan.max_tokens - self._carried.num_done,",
        "max_tokens=self._job.plan.max_tokens,",
        f"{SEEDS}[0]",
    ),
    Mutant(
        "purge-unfenced",
        "a worker reuses what was purged for whoever still names it",
        "cache_store/fence.py",
        "return order > self.order or self.is_current(domain)",
        "return True",
        f"{SEEDS}[125]",
    ),
    Mutant(
        "promise-kept",
        "prompts that did not come to their worker count as on their way to it",
        "services/router/dispatch.py",
        "self._withdraw(coming)  # whatever ended it: what was settled stays",
        "pass",
        f"{SEEDS}[0]",
    ),
    Mutant(
        "tokens-again",
        "tokens that were read from a worker's outbox are read again",
        "worker/outbox.py",
        "        self._tokens.clear()\n",
        "",
        f"{SEEDS}[0]",
    ),
    Mutant(
        "lost-write-forgotten",
        "after a write that failed the index is not written anew",
        "worker/publisher.py",
        '                self._mark_stale()\n                self._note_unreachable("index", error)',
        '                self._note_unreachable("index", error)',
        f"{SEEDS}[0]",
    ),
    Mutant(
        "nothing-put-back",
        "a store that lost control data does not get them back from routers",
        "services/tenants/sync.py",
        "await self._store.restore(self._known)",
        "await self._store.restore(ControlState(None, type(self._known.table)()))",
        f"{SEEDS}[0]",
    ),
    Mutant(
        "never-again",
        "a request whose worker is lost before its first token fails",
        "services/router/dispatch.py",
        "MAX_ATTEMPTS = 4",
        "MAX_ATTEMPTS = 1",
        f"{SEEDS}[0]",
    ),
    Mutant(
        "work-forever",
        "requests that have ended count as running at their worker",
        "services/router/attempt.py",
        "            self._assignment.end(self._clock.monotonic_s())",
        "            pass",
        f"{SEEDS}[0]",
    ),
    Mutant(
        "silence-is-death",
        "workers whose leases ran out while the registry was away are lost when it comes back",
        "services/router/registry_view.py",
        "known.seen_s = self._clock.monotonic_s()",
        "pass",
        "tests/unit/services/router/test_registry_view.py::"
        "test_a_registry_that_is_back_without_leases_loses_nobody_at_once",
    ),
    Mutant(
        "load-forgets",
        "changes that come while a domain is loaded are not applied to it",
        "cache_store/index_replica.py",
        "        for change in changes:\n            self._apply(held, change)\n        self._bound(load.domain_tag)",
        "        self._bound(load.domain_tag)",
        f"{SEEDS}[150]",
    ),
    Mutant(
        "shared-domain",
        "tenants with one prompt have one domain",
        "cache_store/domain.py",
        "data = encode(tenant, epoch, partition, bytes(kv_format))\n"
        "    root = hashlib.blake2b(data, key=_checked(secret)",
        "data = encode(partition, bytes(kv_format))\n    root = hashlib.blake2b(data, key=bytes(32)",
        f"{SEEDS}[0]",
    ),
    Mutant(
        "partition-dropped",
        "partitions of a tenant share what is cached",
        "cache_store/domain.py",
        "data = encode(tenant, epoch, partition, bytes(kv_format))",
        'data = encode(tenant, epoch, "", bytes(kv_format))',
        f"{SEEDS}[0]",
    ),
    Mutant(
        "leak",
        "requests whose callers have gone are never closed",
        "worker/rpc.py",
        "            self._thread.close(engine_request.key)",
        "            pass",
        f"{SEEDS}[0]",
    ),
    Mutant(
        "refused-workers-lost",
        "workers that the store refuses are lost, though all of them answer",
        "services/router/registry_view.py",
        "there = () if records else await self._ask_all()",
        "there = ()",
        "tests/simulation/test_simulation.py::test_workers_that_the_store_refuses_go_on",
    ),
)
