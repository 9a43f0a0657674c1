"""Known errors of window groups."""

from __future__ import annotations

from tests.mutants.catalogue import Mutant

WINDOWS = "tests/unit/worker/test_windows.py"
SLOTS = "tests/property/test_window_slots.py"

WINDOW_GROUPS = (
    Mutant(
        "window-kept",
        "a running sequence keeps the slots that left its window",
        "worker/window_holds.py",
        "        num_full = sequence.num_computed // self._block_size\n        for",
        "        num_full = 0\n        for",
        f"{WINDOWS}::test_a_running_sequence_holds_its_window_and_no_more",
    ),
    Mutant(
        "window-ignored",
        "a prefix is reused though a window group lacks what is read from there on",
        "cache_store/windows.py",
        "                if not has(each.group, at):\n                    return at\n",
        "                if not has(each.group, at):\n                    break\n",
        f"{SLOTS}::test_the_longest_common_boundary_is_that_of_a_search_over_every_length",
    ),
    Mutant(
        "window-too-short",
        "the boundary inside a block looks one token too few back",
        "cache_store/windows.py",
        "max(0, length - self._reach[each.group])",
        "max(0, length - self._reach[each.group] + 1)",
        f"{SLOTS}::test_the_longest_common_boundary_is_that_of_a_search_over_every_length",
    ),
    Mutant(
        "window-unscrubbed",
        "a window's slot that changes domain keeps its bytes",
        "cache_store/window_slots.py",
        "            if slot.root:\n                self._scrubs.append(number)\n",
        "",
        f"{WINDOWS}::test_slots_that_change_domain_are_overwritten_first",
    ),
    Mutant(
        "window-of-what-was-purged",
        "windows' slots of purged domains are not overwritten",
        "cache_store/window_slots.py",
        "            if self._slots[number].tenant in tenants:\n                self._note_dropped(number)\n",
        "            pass\n",
        f"{WINDOWS}::test_a_purge_overwrites_the_slots_of_windows",
    ),
    Mutant(
        "window-one-order",
        "the windows at which sequences end leave like those that they passed",
        "cache_store/window_order.py",
        "        if worth is Worth.PASSED:\n            self._passed[slot] = None\n            return\n",
        "        self._passed[slot] = None\n        return\n",
        f"{WINDOWS}::test_ends_outlive_a_long_prompt",
    ),
    Mutant(
        "window-not-pinned",
        "a pin keeps blocks and not the window at its end",
        "cache_store/windows.py",
        '        return self.lock_part(blocks, 0, TenantId(""))\n',
        "        return True\n",
        f"{WINDOWS}::test_a_pin_keeps_the_window_at_its_end",
    ),
    Mutant(
        "window-in-the-host",
        "a block without a window leaves another one's in its host slot",
        "worker/block_copier.py",
        "np.copyto(self.host[store.host_slot, part], self._poison[part] if slot == ABSENT else pool[slot])",
        "np.copyto(self.host[store.host_slot, part], pool[slot])",
        "tests/contract/test_block_copier.py::test_a_group_without_a_slot_gets_nothing_and_leaves_nothing",
    ),
)
