"""Which adapters a runner has, and when their weights may go: after the last request that began with them.

Owned by the engine's thread. Knows no tensors.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from cache_store.domain import NO_ADAPTER, AdapterDigest, Domain, FormatDigest
from cache_store.errors import UnavailableError
from worker.runner import PreparedAdapter, Runner

_RETRY_S = 1.0


class AttachedAdapters:
    """Of one runner."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._served: set[AdapterDigest] = set()
        self._retired: set[AdapterDigest] = set()

    @property
    def num_retired(self) -> int:
        """Adapters that no new request may name and whose weights are still there."""
        return len(self._retired)

    def attach(self, adapter: PreparedAdapter) -> None:
        """Requests may name it from now on; one that was retired comes back."""
        self._runner.attach_adapter(adapter)
        self._served.add(adapter.digest)
        self._retired.discard(adapter.digest)

    def retire(self, adapter: AdapterDigest) -> None:
        """No new request may name it."""
        if adapter in self._served:
            self._served.remove(adapter)
            self._retired.add(adapter)

    def require(self, adapter: AdapterDigest) -> None:
        """Raises UnavailableError where requests may not name it."""
        if adapter != NO_ADAPTER and adapter not in self._served:
            raise UnavailableError("the adapter of this request was unloaded or replaced; try again", _RETRY_S)

    def let_go(self, in_use: Iterable[AdapterDigest]) -> None:
        """Frees the weights of retired ones that no request uses."""
        if self._retired:
            for adapter in self._retired - set(in_use):
                self._runner.detach_adapter(adapter)
                self._retired.remove(adapter)


def domains_of(kv_format: FormatDigest, domains: Collection[Domain]) -> dict[bytes, Domain]:
    """Of these domains those of one KV format, by root."""
    return {domain.root: domain for domain in domains if domain.kv_format == kv_format}
