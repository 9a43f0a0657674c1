"""Known errors of audits, and of what is planned."""

from __future__ import annotations

from tests.mutants.catalogue import Mutant

AUDIT = "tests/unit/worker/test_audit.py"
PUBLISHED = "tests/unit/cache_store/planning/test_published.py"

AUDITS = (
    Mutant(
        "audit-sees-nothing",
        "an audit takes every difference for rounding",
        "worker/audit.py",
        "if all(difference <= self._tolerance for difference in differences):",
        "if True:",
        f"{AUDIT}::test_a_damaged_block_is_found_and_goes_with_all_below_it",
    ),
    Mutant(
        "audit-in-the-way",
        "audits go on while requests run",
        "worker/engine.py",
        "return self._audits.has_samples and not (self._requests or self.num_loading)",
        "return self._audits.has_samples",
        f"{AUDIT}::test_real_work_goes_first_and_waits_for_one_short_step_at_most",
    ),
    Mutant(
        "audit-takes-others",
        "an audit makes room as requests do, also from other tenants' blocks",
        "cache_store/pool_audit.py",
        "        self._evictions.evict(account, num_missing)\n        return True",
        "        self._evictions.make_room(account, num_blocks)\n        return True",
        f"{AUDIT}::test_no_other_tenants_block_makes_room",
    ),
    Mutant(
        "quarantine-keeps-pins",
        "pins keep blocks that are out of use",
        "worker/engine.py",
        "        self.pins.end_blocks(gone)\n",
        "",
        f"{AUDIT}::test_pins_of_what_goes_end",
    ),
    Mutant(
        "quarantine-unscrubbed",
        "what is wrong stays in its slots",
        "cache_store/pool_audit.py",
        "        self._scrubs.add(loose)\n",
        "",
        f"{AUDIT}::test_the_slots_of_what_goes_are_scrubbed",
    ),
    Mutant(
        "paranoid-reuses",
        "a paranoid worker computes on top of what is cached",
        "worker/allocation.py",
        "return sequence.owner.may_match and self._audit is not AuditMode.PARANOID",
        "return sequence.owner.may_match",
        f"{AUDIT}::test_paranoid_finds_damage_before_anybody_reads_it",
    ),
    Mutant(
        "plan-keeps-windows",
        "layers with a window are planned as if they kept everything",
        "cache_store/planning/kv_cost.py",
        "return min(num_tokens, group.window) if group.window else num_tokens",
        "return num_tokens",
        f"{PUBLISHED}::test_gpt_oss_120b_holds_one_window_in_half_of_its_layers",
    ),
    Mutant(
        "plan-expands-latents",
        "latent attention is planned by its expanded keys and values",
        "cache_store/planning/layers.py",
        "        heads, key_dim, value_dim = 1, attention.latent_dim, 0\n",
        "        pass\n",
        f"{PUBLISHED}::test_deepseek_v2_caches_its_latent_vector",
    ),
)
