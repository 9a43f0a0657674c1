"""Known errors of purges at workers."""

from __future__ import annotations

from tests.mutants.catalogue import Mutant

DROP = "tests/unit/cache_store/test_drop.py"
PURGE = "tests/unit/worker/test_purge.py"
FENCES = "tests/unit/worker/test_fences.py"

PURGES = (
    Mutant(
        "purge-keeps-pins",
        "pins of purged domains stay",
        "worker/engine.py",
        "        self.pins.end_domains(domains.values())\n",
        "",
        f"{PURGE}::test_pins_of_what_is_purged_end_and_others_stay",
    ),
    Mutant(
        "purge-forgets-what-comes",
        "a purge does not see what is on its way for nobody",
        "worker/engine.py",
        "*requests, *self._swap.domains]",
        "*requests]",
        "tests/unit/worker/test_fetch_purges.py::test_a_purge_sees_what_is_on_its_way_for_nobody",
    ),
    Mutant(
        "purge-keeps-storing",
        "a request that runs in a purged domain stores what it computes",
        "worker/sequence.py",
        "return self.request.cache_mode is CacheMode.READ_WRITE and not self.is_dropped",
        "return self.request.cache_mode is CacheMode.READ_WRITE",
        f"{PURGE}::test_a_request_that_runs_ends_as_if_nothing_had_happened_and_leaves_nothing",
    ),
    Mutant(
        "purge-without-scrub",
        "slots of dropped blocks are not scrubbed before somebody wants them",
        "worker/allocation.py",
        "scrubs.drain(scrubs.num_per_plan)",
        "scrubs.drain(0)",
        f"{PURGE}::test_a_request_that_reuses_purged_blocks_reads_them_to_its_end",
    ),
    Mutant(
        "held-not-scrubbed",
        "what requests held of a dropped domain is not scrubbed when they let go of it",
        "cache_store/block_pool.py",
        "if num_let_go and blocks[0].root in self.scrubs.roots:",
        "if False:",
        f"{DROP}::test_held_blocks_stay_with_their_holders_and_are_scrubbed_when_the_last_one_lets_go",
    ),
    Mutant(
        "late-not-scrubbed",
        "what a request of a purged domain that came late computes stays where it is",
        "worker/engine.py",
        "is_dropped = request.cache_mode is CacheMode.PURGED",
        "is_dropped = False",
        f"{PURGE}::test_a_request_that_came_late_finds_and_leaves_nothing",
    ),
    Mutant(
        "scrubbed-in-use",
        "a dropped block is scrubbed also where somebody was given it meanwhile",
        "cache_store/scrubs.py",
        "if block.root != _NOBODY:\n                continue",
        "if not block.root:\n                continue",
        f"{DROP}::test_what_is_given_away_before_it_is_scrubbed_is_scrubbed_by_whoever_gets_it",
    ),
    Mutant(
        "purge-not-told",
        "nobody tells the index that a domain is gone",
        "cache_store/block_pool.py",
        "            self._events.add(domain.tag, BlockChange.CLEARED, ())\n",
        "            pass\n",
        f"{DROP}::test_one_event_tells_that_a_domain_is_gone_and_none_where_there_was_nothing",
    ),
    Mutant(
        "cleared-is-kept",
        "the index keeps the blocks of a domain that is gone",
        "cache_store/redis_index.py",
        'commands.append(("UNLINK", key))',
        "pass",
        "tests/contract/test_index.py::test_a_cleared_domain_is_gone_and_others_and_other_incarnations_keep_theirs",
    ),
    Mutant(
        "ahead-for-ever",
        "a notice stands when the published fences have passed it",
        "worker/fences.py",
        "return notice.fence is None or notice.fence.order > listed.order",
        "return True",
        f"{FENCES}::test_a_notice_is_ahead_of_the_published_fences_until_they_come_up_to_it",
    ),
    Mutant(
        "old-table",
        "published fences take the place of newer ones",
        "worker/fences.py",
        "if tenant in now and now[tenant].order < fence.order:",
        "if False:",
        f"{FENCES}::test_an_older_fence_never_takes_the_place_of_a_newer_one",
    ),
    Mutant(
        "deleted-lives-again",
        "a tenant that is listed nowhere any more is served as if it were new",
        "worker/fences.py",
        "if tenant in self._ahead or (self.generation and claims.control_generation <= self.generation):",
        "if tenant in self._ahead:",
        f"{FENCES}::test_published_fences_say_what_is_new_in_them",
    ),
    Mutant(
        "old-request-reuses",
        "a request of a router that is behind finds and stores what was purged",
        "worker/rpc.py",
        "return request if self.purges.admits(claims) else replace(request, cache_mode=CacheMode.PURGED)",
        "return request",
        "tests/integration/test_worker_purge.py::"
        "test_a_router_that_is_behind_gets_an_answer_without_reuse_and_stores_nothing",
    ),
    Mutant(
        "back-too-soon",
        "a worker that was away relies on the fences that it knew before",
        "worker/rpc_purge.py",
        "return not self._is_behind and self._book.admits(claims)",
        "return self._book.admits(claims)",
        "tests/unit/worker/test_rpc_purge.py::test_who_was_away_serves_without_reuse_until_it_has_read_again",
    ),
    Mutant(
        "purge-behind-step",
        "a purge is answered behind the step that follows it",
        "worker/engine_thread.py",
        "if report.settlements:  #",
        "if False:  #",
        "tests/unit/worker/test_rpc.py::test_a_purge_is_acknowledged_with_what_the_engine_dropped_before_its_next_step",
    ),
)
