"""Known errors of adapters."""

from __future__ import annotations

from tests.mutants.catalogue import Mutant

ENGINE = "tests/unit/worker/test_engine_adapters.py"

ADAPTERS = (
    Mutant(
        "adapter-not-in-format",
        "the KV format is the same with every adapter",
        "cache_store/domain.py",
        "            self.adapter_digest,\n",
        '            b"",\n',
        f"{ENGINE}::test_the_same_prompt_under_one_adapter_after_another_is_computed_and_under_itself_reused",
    ),
    Mutant(
        "adapter-kept-cached",
        "what was cached with an adapter that is unloaded stays",
        "worker/attached_adapters.py",
        "if domain.kv_format == kv_format}",
        "if domain.kv_format != kv_format}",
        f"{ENGINE}::test_retiring_takes_every_tenants_blocks_of_it_and_no_others",
    ),
    Mutant(
        "adapter-gone-too-soon",
        "the weights of an adapter go while requests run with it",
        "worker/attached_adapters.py",
        "self._retired - set(in_use)",
        "set(self._retired)",
        f"{ENGINE}::test_a_retired_adapter_is_dropped_while_what_it_began_goes_on",
    ),
    Mutant(
        "adapter-of-everybody",
        "a private adapter exists for every tenant",
        "services/tenants/adapter.py",
        "self.is_loaded and (self.tenants is None or tenant in self.tenants)",
        "self.is_loaded",
        "tests/unit/services/router/test_served_models.py::test_names_that_are_not_a_tenants_are_unknown_to_it",
    ),
)
