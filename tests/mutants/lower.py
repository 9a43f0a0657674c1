"""Known errors of the tiers below the device."""

from __future__ import annotations

from tests.mutants.catalogue import Mutant

LOWER = "tests/unit/cache_store/test_lower_tiers.py"

REMOVAL = "tests/unit/cache_store/test_block_file_removal.py"

TIERS = (
    Mutant(
        "room-of-the-removed",
        "on a full disk, writes fail as long as the files of a purged domain are not yet unlinked",
        "cache_store/block_files.py",
        "            self._unlinked.wait_for(lambda: self._has_room or not self._num_sweeps, SWEEP_TIMEOUT_S)\n",
        "",
        f"{REMOVAL}::test_who_writes_after_anothers_purge_of_a_full_disk_loses_nothing",
    ),
    Mutant(
        "lower-domain",
        "lower tiers look for the first blocks of prompts in any domain",
        "cache_store/lower_tree.py",
        "node = chain[-1].lower if chain else self.domains.get(domain.root)",
        "node = chain[-1].lower if chain else next(iter(self.domains.values()), None)",
        f"{LOWER}::test_what_the_device_evicts_is_found_in_the_hosts_memory_by_its_own_domain_only",
    ),
    Mutant(
        "storing-block",
        "a block is loaded before the plan that stores it has run",
        "cache_store/lower_tree.py",
        "if node is None or not node.is_ready:",
        "if node is None:",
        f"{LOWER}::test_a_block_is_not_found_before_the_plan_that_stores_it_has_run",
    ),
    Mutant(
        "lower-copies",
        "copies of what the device has are kept as if they were all that is left",
        "cache_store/lower_stays.py",
        "is_above = node.device is not None",
        "is_above = False",
        f"{LOWER}::test_copies_go_first",
    ),
    Mutant(
        "refused-parent",
        "what hangs below a block that leaves all tiers stays",
        "cache_store/lower_tiers.py",
        "            for child in list(node.children.values()):\n                self._stays.forget(child)\n",
        "",
        f"{LOWER}::test_what_is_refused_takes_along_what_hangs_below",
    ),
    Mutant(
        "lower-scrub",
        "host slots that a dropped domain had before keep its bytes",
        "cache_store/lower_tiers.py",
        "elif owner is None or owner.state is StayState.WAITING:",
        "elif owner is not None and owner.state is StayState.WAITING:",
        f"{LOWER}::test_a_dropped_domain_is_found_in_no_tier_and_all_its_bytes_are_overwritten",
    ),
)
