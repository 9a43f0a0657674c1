"""The known errors, each with the test that must notice it."""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    """One error: what it is, where it goes in, and which test turns red."""

    name: str
    what: str
    file: str
    before: str
    after: str
    test: str


FENCE = "tests/unit/cache_store/test_fence.py"
SWAP = "tests/unit/worker/test_swap.py"
POOL = "tests/unit/cache_store/test_block_pool.py"
PARITY = "tests/unit/worker/torch_runner/test_parity.py"
LIMITS = "tests/contract/test_limit_store.py"
WATCH = "tests/unit/worker/test_quota_watch.py"
TORCH = "tests/unit/worker/torch_runner"

MUTANTS = (
    Mutant(
        "position",
        "tokens after the prompt are computed at position 0",
        "worker/torch_runner/paged.py",
        "forward(self._model, attention, batch.token_ids, batch.positions, batch.drawing_tokens, adapters)",
        "forward(\n            self._model,\n            attention,\n            batch.token_ids,\n"
        "            batch.positions * [index >= batch.num_decode_rows for index in range(len(batch.positions))],\n"
        "            batch.drawing_tokens,\n            adapters,\n        )",
        f"{PARITY}::test_paged_equals_generate_in_mixed_batches",
    ),
    Mutant(
        "empty-slots",
        "attention reads to the end of the last block instead of the filled length",
        "worker/torch_runner/step_batch.py",
        "lengths=np.array([row.kv_length for row in rows], dtype=np.int32)",
        "lengths=np.array([-(-row.kv_length // block_size) * block_size for row in rows], dtype=np.int32)",
        f"{PARITY}::test_paged_equals_generate_in_mixed_batches",
    ),
    Mutant(
        "reset",
        "block tables are kept when a sequence gives its blocks back",
        "worker/sequence.py",
        "        self.copy_from = None\n        self.tables = ((),) * len(self.tables)\n        return held",
        "        self.copy_from = None\n        return held",
        "tests/unit/worker/test_scheduler.py::test_out_of_blocks_the_youngest_is_preempted_and_recomputed_exactly",
    ),
    Mutant(
        "idle-credit",
        "a tenant that comes back is served until it has had what it missed while it was idle",
        "worker/fairness.py",
        "self._counters[tenant] = max(self.of(tenant), min(others, default=self._level))",
        "self._counters[tenant] = self.of(tenant)",
        "tests/unit/worker/test_fairness.py::test_who_was_idle_has_saved_nothing",
    ),
    Mutant(
        "unreserved",
        "a request that was preempted twice starts again without all its blocks",
        "worker/admission.py",
        "return self._allocator.blocks_ahead(sequence) if sequence.owner.is_guarded else 0",
        "return 0",
        "tests/unit/worker/test_running_out.py::test_no_request_is_preempted_more_than_twice_however_small_the_pool",
    ),
    Mutant(
        "own-guarantee",
        "tenants within their guarantee are preempted for others",
        "worker/preemption.py",
        "        return max(self.guaranteed, self.fair_blocks)",
        "        return self.fair_blocks",
        "tests/unit/worker/test_preemption.py::test_nobody_at_its_guarantee_or_within_its_part_gives_way",
    ),
    Mutant(
        "copied-heads",
        "a key and value head is kept for every query head",
        "worker/torch_runner/pools.py",
        "size = (num_slots, shape.bytes_per_block(block_size, dtype))",
        "size = (num_slots, 3 * shape.bytes_per_block(block_size, dtype))",
        "tests/integration/test_tiny_proof.py::test_bytes_of_the_tensors_are_those_of_the_formula",
    ),
    Mutant(
        "mask-off",
        "new tokens of a prompt see those after them",
        "worker/torch_runner/dense_attention.py",
        "    if num_rows == 1:\n        return None",
        "    if num_rows:\n        return None",
        f"{PARITY}::test_contiguous_equals_generate_in_mixed_batches",
    ),
    Mutant(
        "tenant-dropped",
        "the tenant is left out of the domain root",
        "cache_store/domain.py",
        "data = encode(tenant, epoch, partition, bytes(kv_format))\n"
        "    root = hashlib.blake2b(data, key=_checked(secret)",
        "data = encode(epoch, partition, bytes(kv_format))\n    root = hashlib.blake2b(data, key=bytes(32)",
        f"{POOL}::test_the_same_domain_hits_and_another_misses",
    ),
    Mutant(
        "token-check-off",
        "blocks are matched by digest instead of by tokens",
        "cache_store/prefix_tree.py",
        "node = node.children.get(own)",
        "wanted = block_digest(node.digest, PackedTokens(own), self._hasher)\n"
        "            node = next((child for child in node.children.values() if child.digest == wanted), None)",
        f"{POOL}::test_a_constant_hash_changes_no_match",
    ),
    Mutant(
        "mac-unchecked",
        "the MAC of the request token is not compared",
        "cache_store/request_token.py",
        "if not fits(cluster_key, body, mac, _PERSON):",
        "if len(mac) != MAC_BYTES:",
        "tests/unit/cache_store/test_request_token.py::test_another_key_is_refused",
    ),
    Mutant(
        "scrub-off",
        "slots that held another domain's bytes are handed out as they are",
        "cache_store/block_pool.py",
        "if block.root:",
        "if False:",
        f"{POOL}::test_slots_that_change_domain_are_scrubbed_and_others_not",
    ),
    Mutant(
        "pin-missing",
        "matched blocks are not pinned",
        "cache_store/block_pool.py",
        "        self._hold(self._ledger.of(domain.tenant), match.pinned)\n        return match",
        "        return match",
        f"{POOL}::test_pinned_blocks_are_not_evicted",
    ),
    Mutant(
        "pointer-not-reset",
        "a sequence that takes over a place goes on at its predecessor's position",
        "worker/torch_runner/contiguous.py",
        "            self._pointers[place] = 0\n",
        "",
        f"{TORCH}/test_contiguous.py::test_a_place_that_is_taken_again_starts_at_zero",
    ),
    Mutant(
        "window-mask-off",
        "queries read beyond their sliding window",
        "worker/torch_runner/dense_attention.py",
        "return hidden | (keys <= rows - window) if window else hidden",
        "return hidden",
        f"{PARITY}::test_paged_equals_generate_in_mixed_batches[mistral-gather]",
    ),
    Mutant(
        "causal-mask-off",
        "a query of the kernel reads the token after its own",
        "worker/torch_runner/paged_attention.cpp",
        "for (int j = row.position < base ? 0 : row.position - base + 1;",
        "for (int j = row.position < base ? 0 : row.position - base + 2;",
        f"{PARITY}::test_paged_equals_generate_in_mixed_batches[llama-fastest]",
    ),
    Mutant(
        "scrub-not-executed",
        "the runner leaves out the scrubs of a step",
        "worker/torch_runner/pools.py",
        "            if slots:\n                group.scrub(slots)\n",
        "",
        f"{TORCH}/test_paged.py::test_a_scrubbed_slot_can_no_longer_be_read[gather]",
    ),
    Mutant(
        "old-quotas",
        "a worker takes quotas that are older than its own",
        "worker/quota_watch.py",
        "return head.is_newer(self._in_force) and head.generation >= self._known.get(head.store_id, 0)",
        "return head != self._in_force",
        f"{WATCH}::test_a_replay_takes_no_guarantee_away",
    ),
    Mutant(
        "forged-quotas",
        "the MAC of published quotas is not compared",
        "cache_store/quota_document.py",
        "if not fits(cluster_key, fields, mac, _PERSON):",
        "if len(mac) != MAC_BYTES:",
        f"{WATCH}::test_what_cannot_be_believed_changes_nothing",
    ),
    Mutant(
        "promised-twice",
        "guarantees of a tier may exceed it",
        "cache_store/quota.py",
        "if asked > before.share(tier).minimum and asked + taken > 1 + ROUNDING:",
        "if asked > 1 + ROUNDING:",
        "tests/integration/test_control_quotas.py::"
        "test_of_two_routers_that_promise_the_same_room_at_once_one_is_refused",
    ),
    Mutant(
        "pins-of-all",
        "a pin is found by its id alone, whoever has it",
        "worker/pins.py",
        "pin = self._pins.get(domain.tenant, {}).get(pin_id)",
        "pin = next((pins[pin_id] for pins in self._pins.values() if pin_id in pins), None)",
        "tests/unit/worker/test_pins.py::test_another_tenants_pin_is_absent",
    ),
    Mutant(
        "open-cache-service",
        "the cache service is open to callers without a key until their message is read",
        "services/router/auth.py",
        "for service in TENANT_SERVICES",
        "for service in TENANT_SERVICES[:1]",
        "tests/integration/test_router_prefixes.py::test_a_caller_without_a_key_is_refused_before_its_message",
    ),
    Mutant(
        "half-a-list",
        "a list of pins leaves out workers that did not answer",
        "services/router/prefixes.py",
        '_raise_errors(answers, "its pins are not known")',
        "pass",
        "tests/unit/services/router/test_prefixes.py::test_an_answer_that_lacks_a_worker_is_no_answer",
    ),
    Mutant(
        "guarantee-taken",
        "a tenant pays for others out of its guarantee",
        "cache_store/lending.py",
        "excess = account.num_used - account.protected",
        "excess = account.num_used",
        "tests/unit/cache_store/test_lending.py::test_nobody_pays_out_of_its_guarantee",
    ),
    Mutant(
        "strict-lent",
        "a strict tenant's slots are anybody's once it has let go of them",
        "cache_store/account.py",
        "self.num_kept = min(self.num_kept + num_blocks, self.num_to_keep)",
        "self.num_kept = min(self.num_kept, self.num_to_keep)",
        "tests/property/test_walls.py::test_a_strict_tenants_trace_is_the_same_whatever_others_do[Lru]",
    ),
    Mutant(
        "guard-off",
        "a policy that does worse than LRU is followed",
        "cache_store/account.py",
        "if self.watch is not None and self.watch.prefers_lru:",
        "if False:",
        "tests/unit/cache_store/test_shadow.py::test_a_policy_that_does_worse_than_lru_is_not_followed",
    ),
    Mutant(
        "lent-for-good",
        "a lent guarantee does not come back when it would help",
        "cache_store/shadow.py",
        "if self.is_useless and tally.num_lost > tally.num_gained:",
        "if False:",
        "tests/unit/cache_store/test_shadow.py::test_what_the_shadow_would_have_hit_brings_the_guarantee_back",
    ),
    Mutant(
        "limit-of-each-router",
        "a router is granted places whatever other routers have",
        "cache_store/scripts/lease_places.lua",
        "math.max(0, limit - others)",
        "limit",
        f"{LIMITS}::test_routers_together_never_have_more_than_the_limit",
    ),
    Mutant(
        "late-ask",
        "an ask for places that was overtaken by a later one is done",
        "cache_store/scripts/lease_places.lua",
        "elseif tonumber(last) >= number then",
        "elseif tonumber(last) < 0 then",
        f"{LIMITS}::test_an_ask_that_was_overtaken_by_a_later_one_changes_nothing",
    ),
    Mutant(
        "free-answers",
        "tokens that are made beyond what was expected are not counted",
        "services/router/token_meter.py",
        "self._spend(self.made - before)",
        "pass",
        "tests/unit/services/router/test_token_slice.py::test_the_meter_corrects_what_was_estimated",
    ),
    Mutant(
        "strict-by-cost",
        "strict tenants are routed by load as all others",
        "services/router/routing.py",
        "return costs.in_order_of_affinity() if request.is_strict else costs.cheapest()",
        "return costs.cheapest()",
        "tests/property/test_strict_routing.py::test_neither_load_nor_index_changes_the_choice",
    ),
    Mutant(
        "room-of-others",
        "what fits is judged by the whole pool instead of the tenant's part",
        "services/router/room.py",
        "own_blocks = (part.max_blocks(record.num_blocks) - shared_blocks) // num_samples",
        "own_blocks = (record.num_blocks - shared_blocks) // num_samples",
        "tests/unit/services/router/test_room.py::test_exactly_that_much_fits_into_the_pool",
    ),
    Mutant(
        "purge-in-the-other-store",
        "of two stores of one epoch the purges of one are lost when they are joined",
        "services/tenants/table.py",
        "marks=joined_marks(a.marks, b.marks) if _epoch_order(a) == _epoch_order(b) else newer.marks",
        "marks=newer.marks",
        "tests/property/test_tenants.py::test_nothing_that_was_ended_lives_after_a_join",
    ),
    Mutant(
        "model-mark",
        "two purges of a model make the same domains",
        "cache_store/fence.py",
        'model_mark.value if model_mark else "",',
        '"",',
        f"{FENCE}::test_each_purge_makes_other_domains",
    ),
    Mutant(
        "same-order",
        "of two fences of one order the other one's domains are admitted",
        "cache_store/fence.py",
        "order > self.order or",
        "order >= self.order or",
        f"{FENCE}::test_of_two_fences_of_one_order_the_other_ones_domains_are_not_admitted",
    ),
    Mutant(
        "forged-notice",
        "a notice of a purge is taken whoever signed it",
        "cache_store/fence_document.py",
        "if not fits(cluster_key, body, mac, _PERSON):",
        "if not mac:",
        f"{FENCE}::test_a_notice_that_was_not_signed_under_the_clusters_key_is_refused",
    ),
    Mutant(
        "plan-that-waited",
        "a request that waited while its partition was purged asks for what was purged",
        "services/router/planning.py",
        "if known.tenant.fence == plan.known.tenant.fence and model == plan.model:",
        "if known.tenant.id == plan.known.tenant.id and model == plan.model:",
        "tests/unit/services/router/test_planning.py::test_a_plan_that_waited_asks_for_the_new_domain",
    ),
    Mutant(
        "torn-load",
        "what a load did not bring whole is used",
        "worker/swap.py",
        "num_whole = 0 if swap_in.is_void else min(swap_in.failed, default=len(blocks))",
        "num_whole = 0 if swap_in.is_void else len(blocks)",
        f"{SWAP}::test_what_comes_before_a_block_that_failed_is_used",
    ),
    Mutant(
        "purged-load",
        "what is on its way to the device while it is purged is used",
        "worker/engine.py",
        "        self._swap.purge(domains)\n",
        "",
        f"{SWAP}::test_what_is_purged_on_its_way_is_not_used_and_its_bytes_go",
    ),
)
