"""Known errors of blocks between workers."""

from __future__ import annotations

from tests.mutants.catalogue import Mutant

FETCHES = "tests/unit/worker/test_fetches.py"
STREAM = "tests/unit/worker/test_peer_stream.py"
TOKENS = "tests/unit/cache_store/test_peer_tokens.py"
COST = "tests/unit/worker/test_fetch_cost.py"
GIVING = "tests/unit/worker/test_give_away.py"
RPC = "tests/integration/test_worker_peers.py"

PEERS = (
    Mutant(
        "peer-key-of-all",
        "what goes between workers is sealed by a key that does not come from the domain",
        "cache_store/peer_seal.py",
        "key=domain.root, digest_size=32",
        "key=bytes(32), digest_size=32",
        f"{STREAM}::test_who_does_not_know_the_root_opens_nothing",
    ),
    Mutant(
        "peer-key-again",
        "a question that is sent again is answered under the same key",
        "cache_store/peer_seal.py",
        'b"answer" + salt + digest',
        'b"answer" + digest',
        f"{STREAM}::test_two_answers_use_two_keys",
    ),
    Mutant(
        "peer-prefix-unbound",
        "an answer opens for another prompt that ends alike",
        "cache_store/peer_seal.py",
        'b"answer" + salt + digest',
        'b"answer" + salt',
        f"{STREAM}::test_an_answer_to_another_question_does_not_open",
    ),
    Mutant(
        "peer-flood",
        "what comes beyond what was asked for is buffered",
        "worker/peer_stream.py",
        "        if self._pending:\n            raise",
        "        if False:\n            raise",
        f"{STREAM}::test_more_than_was_asked_for_is_refused",
    ),
    Mutant(
        "peer-any-holder",
        "a worker answers questions that were asked of another one",
        "cache_store/peer_token.py",
        "if claims.exchange.holder != holder:",
        "if False:",
        f"{TOKENS}::test_it_is_for_one_holder_and_for_seconds",
    ),
    Mutant(
        "peer-for-ever",
        "a worker's token may last as long as it says",
        "cache_store/peer_token.py",
        "if not now_unix_s <= claims.expires_unix_s <= now_unix_s + 2 * PEER_TOKEN_LIFETIME_S:",
        "if not now_unix_s <= claims.expires_unix_s:",
        f"{TOKENS}::test_it_is_for_one_holder_and_for_seconds",
    ),
    Mutant(
        "peer-purged",
        "a worker gives blocks of what was purged to whoever has not heard of it",
        "worker/rpc_peers.py",
        "            if not self._admits(believed):\n                return\n",
        "",
        f"{RPC}::test_who_may_have_missed_a_purge_gives_nothing",
    ),
    Mutant(
        "fetch-purged",
        "what is on its way from another worker while it is purged is used",
        "worker/swap.py",
        "        self.fetches.purge(roots)\n",
        "",
        f"{FETCHES}::test_a_purge_on_the_way_leaves_nothing_to_be_used",
    ),
    Mutant(
        "fetch-without-beginning",
        "blocks that came are hung below whatever is left of what they follow",
        "worker/swap.py",
        "        if num_new <= 0 or len(held) < landing.first_block:",
        "        if num_new <= 0:",
        f"{FETCHES}::test_what_arrives_where_its_beginning_has_gone_is_not_used",
    ),
    Mutant(
        "fetch-strict",
        "strict tenants fetch, within what others leave",
        "worker/fetches.py",
        "        if self._pool.quotas.of(domain.tenant).share(self._pool.kind).is_strict:\n",
        "        if False:\n",
        f"{FETCHES}::test_strict_tenants_fetch_nothing",
    ),
    Mutant(
        "fetch-twice",
        "equal prompts are fetched once each",
        "worker/fetches.py",
        "        shared = self._shared(sequence, num_here)\n",
        "        shared = None\n",
        f"{FETCHES}::test_equal_prompts_wait_for_one_fetch",
    ),
    Mutant(
        "fetch-left-alone",
        "a fetch that nobody waits for any more goes on",
        "worker/scheduler.py",
        "            self._swap.stop_waiting(sequence)\n",
        "",
        f"{FETCHES}::test_a_fetch_that_nobody_waits_for_any_more_is_cancelled",
    ),
    Mutant(
        "fetch-circle",
        "who waits for another worker is said to compute, so that two wait for each other",
        "worker/exchange.py",
        "if not owner.may_commit or owner.domain.root != domain.root or sequence.waits_for_swap:",
        "if not owner.may_commit or owner.domain.root != domain.root:",
        f"{FETCHES}::test_who_waits_for_a_fetch_is_not_said_to_compute",
    ),
    Mutant(
        "fetch-no-hysteresis",
        "what was declined is tried again as soon as it is no slower",
        "worker/fetch_cost.py",
        "(CLEARLY if known.is_declined else 1.0)",
        "1.0",
        f"{COST}::test_what_was_declined_has_to_be_clearly_faster",
    ),
    Mutant(
        "fetch-no-end",
        "a fetch may take as long as it takes",
        "worker/fetch_cost.py",
        "min(MAX_TIMEOUT_S, max(MIN_TIMEOUT_S, compute_s))",
        "MAX_TIMEOUT_S",
        f"{COST}::test_a_fetch_may_take_as_long_as_computing",
    ),
    Mutant(
        "give-ttl",
        "blocks with a time to live are given away, and live without it",
        "worker/exchange.py",
        "        while line and not lasts(line[-1]):\n",
        "        while False:\n",
        f"{GIVING}::test_what_has_a_time_to_live_stays",
    ),
    Mutant(
        "give-ttl-running",
        "blocks of a running request with a time to live are given away",
        "worker/exchange.py",
        "return block not in held if block.use is None else",
        "return True if block.use is None else",
        f"{GIVING}::test_what_is_to_have_a_time_to_live_stays_while_its_request_runs",
    ),
    Mutant(
        "fetch-shared-whole",
        "who shares a block with a fetch waits for all of it",
        "worker/fetches.py",
        " and self._is_soon(fetch, num_more):",
        ":",
        f"{FETCHES}::test_who_shares_little_with_a_fetch_does_not_wait_for_all_of_it",
    ),
    Mutant(
        "fetch-waits-on",
        "who waits for a fetch that should be quick waits until it ends",
        "worker/fetches.py",
        "fetch.waiting[sequence] = now_s + fetch.patience_s(num_more)",
        "fetch.waiting[sequence] = math.inf",
        f"{FETCHES}::test_who_waits_for_a_fetch_that_should_be_quick_has_a_time_of_its_own",
    ),
    Mutant(
        "adopt-others-blocks",
        "what a leaving worker gives makes room among others' blocks",
        "worker/fetches.py",
        "self._num_allowed(domain), self._num_spare(domain))",
        "self._num_allowed(domain))",
        f"{GIVING}::test_who_takes_it_takes_no_others_blocks",
    ),
)
