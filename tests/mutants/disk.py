"""Known errors of blocks on disk and of tiers that several domains share."""

from __future__ import annotations

from tests.mutants.catalogue import Mutant

DAMAGE = "tests/unit/cache_store/test_block_file_damage.py"
REMOVAL = "tests/unit/cache_store/test_block_file_removal.py"
CANARY = "tests/integration/test_canary.py::test_nothing_of_a_purged_tenant_is_found_anywhere"

SEALED = (
    Mutant(
        "other-blocks-file",
        "a file is taken for the block that was asked for as soon as it opens",
        "cache_store/block_seal.py",
        "if header != _header(name, len(target)):",
        "if len(header) != len(_header(name, len(target))):",
        f"{DAMAGE}::test_exchanged_files_are_misses",
    ),
    Mutant(
        "one-key",
        "all domains are sealed under one key, which outlives them",
        "cache_store/block_seal.py",
        "AESGCM.generate_key(256) if key is None",
        "bytes(32) if key is None",
        f"{DAMAGE}::test_a_key_is_never_used_again",
    ),
    Mutant(
        "nonce-again",
        "two blocks are sealed under one nonce",
        "cache_store/block_seal.py",
        "number = next(self._numbers)",
        "number = 0",
        "tests/unit/cache_store/test_block_seal.py::test_no_two_seals_of_a_block_are_equal",
    ),
    Mutant(
        "half-a-file",
        "a write that ends halfway leaves its file",
        "cache_store/block_files.py",
        "        except BaseException:\n            self._give_back(domain, name, incoming)\n            raise",
        "        except KeyboardInterrupt:\n            self._give_back(domain, name, incoming)\n            raise",
        f"{DAMAGE}::test_a_write_that_the_system_ends_halfway_leaves_nothing",
    ),
    Mutant(
        "key-that-waits",
        "the key of a removed domain lives until its files are unlinked",
        "cache_store/block_files.py",
        "self._sweeper.submit(self._sweep_all, swept)",
        "self._sweeper.submit(lambda _: self._sweep_all(swept), domains)",
        f"{REMOVAL}::test_a_key_does_not_wait_for_its_files",
    ),
    Mutant(
        "files-that-stay",
        "files of a removed domain are not unlinked",
        "cache_store/block_files.py",
        "            self._unlink(folder / str(number))\n",
        "            pass\n",
        f"{REMOVAL}::test_a_removed_domain_is_gone_and_another_stays",
    ),
    Mutant(
        "number-dropped",
        "blocks whose digests collide are one file",
        "cache_store/lower_block.py",
        "number=self.number",
        "number=0",
        "tests/unit/worker/test_tier_collisions.py"
        "::test_with_a_constant_hash_everything_comes_back_to_where_it_belongs[disk]",
    ),
    Mutant(
        "staging-kept",
        "buffers between host and disk keep what went through them",
        "worker/transfers.py",
        "np.frombuffer(buffer, dtype=np.uint8).fill(0)",
        "pass",
        f"{CANARY}[valkey-digest]",
    ),
    Mutant(
        "host-scrub-off",
        "slots of the host pool are not overwritten",
        "worker/block_copier.py",
        "            np.copyto(self.host[slot], self._poison)\n",
        "            pass\n",
        f"{CANARY}[valkey-digest]",
    ),
)
