"""Known errors of routers: the copy of the index, prompts on their way, answers that go on, explanations."""

from __future__ import annotations

from tests.mutants.catalogue import Mutant

REPLICA = "tests/integration/test_index_replica.py"
UNIT = "tests/unit/services/router"

ROUTERS = (
    Mutant(
        "unnoticed-gap",
        "entries of a stream that are missing are not noticed",
        "cache_store/redis_replica.py",
        "elif entry.before != (follower.mark or _NO_MARK):",
        'elif entry.before == b"never":',
        f"{REPLICA}::test_entries_that_were_trimmed_before_they_were_read_make_it_begin_anew",
    ),
    Mutant(
        "old-copy",
        "a copy that was not polled for long answers as if it were current",
        "cache_store/redis_replica.py",
        "oldest_s = now_s - FRESH_S",
        "oldest_s = now_s - 1e9",
        f"{REPLICA}::test_a_copy_that_was_not_polled_for_a_second_asks_the_script",
    ),
    Mutant(
        "overtaken-load",
        "what an older load has read counts for a newer one",
        "cache_store/index_replica.py",
        "return self._domains.get(load.domain_tag, {}).get(load.incarnation) is load.held",
        "return load.incarnation in self._domains.get(load.domain_tag, {})",
        "tests/unit/cache_store/test_index_replica.py::test_a_load_that_was_overtaken_by_another_one_changes_nothing",
    ),
    Mutant(
        "everybodys-burst",
        "prompts on their way count for every domain",
        "services/router/speculations.py",
        "newest = self._newest.get((domain_tag, incarnation))",
        "newest = next((held for (_, each), held in self._newest.items() if each == incarnation), None)",
        f"{UNIT}/test_speculations.py::test_leading_blocks_count_for_their_domain_and_worker_only",
    ),
    Mutant(
        "eager-copies",
        "a hot prefix is copied to worker after worker, however many hold it",
        "services/router/routing.py",
        "request.heat / counted.count(self._most)",
        "request.heat",
        f"{UNIT}/test_routing.py::test_enough_holders_make_no_further_copy",
    ),
    Mutant(
        "binding-crumb",
        "a few cached tokens bind a request to a busy worker",
        "services/router/routing.py",
        "counted = [tokens if tokens >= minimum else 0 for tokens in matched]",
        "counted = matched",
        f"{UNIT}/test_routing.py::test_a_match_of_few_tokens_binds_nobody",
    ),
    Mutant(
        "one-heat",
        "one tenant's requests make another one's prefix hot",
        "services/router/heat.py",
        "before = self._pop((domain_tag, last_held), now_s)",
        "before = sum(self._pop(each, now_s) for each in list(self._counts) if each[1] == last_held)",
        f"{UNIT}/test_heat.py::test_other_blocks_and_other_domains_stay_cold",
    ),
    Mutant(
        "repeated-tokens",
        "tokens that had come before a worker was lost come again",
        "services/router/carried.py",
        "self._to_skip = [0 if len(self._tokens) == 1 else len(tokens) for tokens in self._tokens]",
        "self._to_skip = [0 for _ in self._tokens]",
        f"{UNIT}/test_carried.py::test_several_samples_are_made_again_and_what_came_is_skipped",
    ),
    Mutant(
        "other-tokens",
        "a worker that makes other tokens than those that went out is followed",
        "services/router/carried.py",
        "if tokens[start : start + skipped] != made.tokens[:skipped]:",
        "if len(tokens) < start:",
        f"{UNIT}/test_carried.py::test_a_worker_that_makes_other_tokens_is_not_followed",
    ),
    Mutant(
        "nobody-vouches",
        "workers that cannot renew are lost, though all of them answer",
        "services/router/registry_view.py",
        "there = () if records else await self._ask_all()",
        "there = ()",
        f"{UNIT}/test_registry_view.py::test_where_nobody_renews_those_that_answer_stay",
    ),
    Mutant(
        "all-vouch",
        "a worker that the registry drops stays as long as it answers",
        "services/router/registry_view.py",
        "there = () if records else await self._ask_all()",
        "there = await self._ask_all()",
        f"{UNIT}/test_registry_view.py::test_who_alone_stops_to_renew_is_lost_though_it_answers",
    ),
    Mutant(
        "base-format-only",
        "no other worker is named for requests with an adapter",
        "services/router/dispatch.py",
        "peer = find_peer(choice, served, job.plan.matched_tokens, tried)",
        "peer = find_peer(choice, self._view.snapshot(), job.plan.matched_tokens, tried)",
        "tests/integration/test_router_drain_adapters.py::test_a_prompt_for_an_adapter_that_load_sends_elsewhere_is_fetched",
    ),
    Mutant(
        "drained-comes-back",
        "a worker that was told to leave is started again",
        "services/cluster/supervision.py",
        "                if condition.health is Health.LEFT:\n",
        "                if False:\n",
        "tests/unit/services/cluster/test_supervision.py::test_a_part_that_left_is_not_started_again",
    ),
)
