"""Known errors of moves between tiers."""

from __future__ import annotations

from tests.mutants.catalogue import Mutant

TRANSFERS = "tests/unit/worker/test_transfers.py"
COPIERS = "tests/contract/test_block_copier.py"

MOVES = (
    Mutant(
        "spill-after-store",
        "a host slot is read for the disk after the next block was stored to it",
        "worker/transfers.py",
        "            for spill in moves.spills:\n      ",
        "            self._copier.store(moves.stores)\n            for spill in moves.spills:\n      ",
        f"{TRANSFERS}::test_the_host_slot_of_a_spill_is_free_at_once",
    ),
    Mutant(
        "late-write",
        "a block that was being written when its domain was dropped stays on disk",
        "worker/transfers.py",
        "if self._writes.is_void():",
        "if False:",
        f"{TRANSFERS}::test_a_domain_that_is_dropped_does_not_wait_for_the_disk",
    ),
    Mutant(
        "dropped-is-written",
        "what waits to be written when its domain is dropped is written",
        "worker/transfers.py",
        "for write in self._writes.drop(roots):",
        "for write in ():",
        f"{TRANSFERS}::test_a_domain_that_is_dropped_does_not_wait_for_the_disk",
    ),
    Mutant(
        "no-turns",
        "loads are carried out in the order in which they were asked for, whoever asked for how many",
        "worker/turns.py",
        "                self._waiting[tenant] = domains\n            return taken",
        "                self._waiting[tenant] = domains\n"
        "                self._waiting.move_to_end(tenant, last=False)\n            return taken",
        f"{TRANSFERS}::test_tenants_take_turns",
    ),
    Mutant(
        "host-not-scrubbed",
        "host slots keep what they are told to overwrite",
        "worker/block_copier.py",
        "        for slot in host_slots:\n            np.copyto(self.host[slot], self._poison)",
        "        for slot in host_slots[:0]:\n            np.copyto(self.host[slot], self._poison)",
        f"{COPIERS}::test_slots_that_nothing_was_stored_to_and_scrubbed_ones_hold_poison",
    ),
    Mutant(
        "silent-death",
        "nobody hears of a thread of the tiers that died",
        "worker/transfers.py",
        "                self._failure = error\n",
        "",
        f"{TRANSFERS}::test_a_thread_that_dies_shows",
    ),
    Mutant(
        "lost-results",
        "what a step that raised had not begun is never reported",
        "worker/transfers.py",
        "            if transfer not in self._begun:\n",
        "            if transfer in self._begun:\n",
        f"{TRANSFERS}::test_a_plan_that_was_not_begun_ends_as_failed_but_forgets",
    ),
)
