"""What has to be known before a worker is chosen: model, token ids, seed, domains, and who holds the prefix.

Knows tenants' secrets for as long as it derives domains. Decides nothing about load. Owns no state but whether the
index answered last time.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from cache_store.digest import chain
from cache_store.domain import Domain, FormatDigest
from cache_store.errors import InvalidRequestError, NotFoundError, UnavailableError
from cache_store.index import Incarnation, IndexReader, IndexUnavailableError
from cache_store.quota import PoolPart
from cache_store.registry import RENEW_S, WorkerRecord
from cache_store.tokens import PackedTokens, count
from services.router.generation import CacheMode, GenerationSpec
from services.router.outage import Outage
from services.router.pool_parts import PoolParts
from services.router.registry_view import RegistryView
from services.router.rendezvous import Affinity, affinity
from services.router.room import answer_room
from services.router.speculations import Speculations
from services.router.tokenizers import Tokenizers
from services.router.validation import check_vocabulary
from services.tenants.directory import KnownTenant, TenantDirectory
from services.tenants.model import Tenant

DEFAULT_MAX_TOKENS = 512

_SEED_BITS = 64


@dataclass(frozen=True, slots=True)
class Plan:
    """A request that is ready to be routed."""

    model: str
    prompt: PackedTokens
    max_tokens: int
    seed: int
    cache_mode: CacheMode
    known: KnownTenant
    """By which the domains were derived."""
    domains: Mapping[FormatDigest, Domain]
    """Of the tenant's partition, for each KV format among the workers."""
    chains: Mapping[FormatDigest, bytes]
    """Packed digests of the prompt's full blocks, for each KV format; none where the cache is not read."""
    matched_tokens: Mapping[Incarnation, int]
    """What the index promises, or what is on its way; absent is 0."""
    degraded: bool
    part: PoolPart
    """What the tenant may have of each worker's pool."""
    affinity: Affinity | None
    """Of a strict tenant's request; None: routed by cost."""


@dataclass(frozen=True, slots=True)
class _Found:
    chains: Mapping[FormatDigest, bytes]
    tokens: Mapping[Incarnation, int]
    is_current: bool
    """False: the index is out of reach."""


_NOTHING = _Found({}, {}, is_current=True)


class Planner:
    """Makes plans."""

    def __init__(
        self,
        directory: TenantDirectory,
        tokenizers: Tokenizers,
        view: RegistryView,
        index: IndexReader,
        speculations: Speculations,
    ) -> None:
        self._directory = directory
        self._tokenizers = tokenizers
        self._view = view
        self._index = index
        self._speculations = speculations
        self._parts = PoolParts(directory)
        self._outage = Outage("index")

    def model_named(self, name: str) -> str:
        """The model that a request means.

        Raises NotFoundError for one that nobody serves, InvalidRequestError where none is named and several are served,
        UnavailableError where nothing is known yet.
        """
        known = sorted({*self._view.models(), *self._tokenizers.models})
        if not known:
            raise UnavailableError("no worker is ready yet", RENEW_S)
        if not name and len(known) == 1:
            return known[0]
        if not name:
            raise InvalidRequestError("model", f"name one of the models that are served: {', '.join(known)}")
        if name not in known:
            raise NotFoundError(f"model {name[:64]!r} is not served here; served are: {', '.join(known)}")
        return name

    def workers_of(self, model: str) -> tuple[WorkerRecord, ...]:
        """Workers of a model. Raises UnavailableError where there are none now."""
        records = tuple(view.record for view in self._view.snapshot() if view.record.model == model)
        if not records:
            raise UnavailableError(f"no worker serves model {model!r} now", RENEW_S)
        return records

    def latest(self, tenant: Tenant) -> KnownTenant:
        """The tenant, to derive domains by."""
        return self._directory.latest(tenant)

    def workers(self) -> tuple[WorkerRecord, ...]:
        """All workers, by worker id."""
        return self._view.records()

    async def plan(self, tenant: Tenant, spec: GenerationSpec) -> Plan:
        """Raises InvalidRequestError, NotFoundError, UnavailableError."""
        model = self.model_named(spec.model)
        workers = self.workers_of(model)
        if spec.sampling.stop and self._tokenizers.get(model) is None:
            raise InvalidRequestError(
                "sampling_params.stop",
                f"model {model!r} has no tokenizer here, so no text to stop at; use stop_token_ids",
            )
        prompt = await self._tokenizers.encode(model, spec.prompt)
        _check_tokens(spec, prompt, workers)
        is_stale = self._directory.is_stale
        cache_mode = CacheMode.BYPASS if is_stale else spec.cache_mode
        known = self.latest(tenant)
        domains = _domains(known, spec.partition, model, workers)
        found = _NOTHING if cache_mode is CacheMode.BYPASS else await self._lookup(domains, prompt, workers)
        part = self._parts.of(tenant.id)
        return Plan(
            model=model,
            prompt=prompt,
            max_tokens=_max_tokens(spec, part, count(prompt), workers),
            seed=secrets.randbits(_SEED_BITS) if spec.sampling.seed is None else spec.sampling.seed,
            cache_mode=cache_mode,
            known=known,
            domains=domains,
            chains=found.chains,
            matched_tokens=found.tokens,
            degraded=is_stale or not found.is_current or not self._view.is_reachable,
            part=part,
            affinity=_affinity(tenant, spec, prompt) if part.share.is_strict else None,
        )

    def renewed(self, plan: Plan, tenant: Tenant, spec: GenerationSpec) -> Plan:
        """The plan by what is known now: it may have waited, and what was purged meanwhile is not asked for."""
        known = self.latest(tenant)
        if self._directory.is_stale:
            plan = replace(plan, cache_mode=CacheMode.BYPASS, degraded=True)
        if known.tenant.fence == plan.known.tenant.fence:
            return replace(plan, known=known)
        domains = {each: known.domain(spec.partition, plan.model, each) for each in plan.domains}
        return replace(plan, known=known, domains=domains, chains={}, matched_tokens={})

    async def _lookup(
        self, domains: Mapping[FormatDigest, Domain], prompt: PackedTokens, workers: Sequence[WorkerRecord]
    ) -> _Found:
        """What each worker holds of the prompt, or will soon."""
        chains: dict[FormatDigest, bytes] = {}
        matched: dict[Incarnation, int] = {}
        reason = ""
        for kv_format, domain in domains.items():
            block_sizes = {worker.incarnation: worker.block_size for worker in workers if worker.kv_format == kv_format}
            block_size = next(iter(block_sizes.values()))  # part of the format
            digests = chains[kv_format] = b"".join(chain(domain, prompt, block_size))
            try:
                blocks = await self._index.lookup(domain.tag, digests, list(block_sizes))
            except IndexUnavailableError as error:
                blocks, reason = error.known, str(error)
            for incarnation in block_sizes:
                coming = self._speculations.leading(domain.tag, incarnation, digests)
                matched[incarnation] = max(blocks.get(incarnation, 0), coming) * block_size
        if reason:
            self._outage.failed(reason)
        else:
            self._outage.succeeded()
        return _Found(chains, matched, is_current=not reason)


def _check_tokens(spec: GenerationSpec, prompt: PackedTokens, workers: Sequence[WorkerRecord]) -> None:
    vocab_size = min(worker.vocab_size for worker in workers)
    check_vocabulary("prompt.token_ids", prompt, vocab_size)
    largest = max(spec.sampling.stop_token_ids, default=0)
    if largest >= vocab_size:
        raise InvalidRequestError(
            "sampling_params.stop_token_ids",
            f"token id {largest} is outside the vocabulary; the model's ids are 0 to {vocab_size - 1}",
        )


def _domains(
    known: KnownTenant, partition: str, model: str, workers: Sequence[WorkerRecord]
) -> Mapping[FormatDigest, Domain]:
    return {each: known.domain(partition, model, each) for each in {worker.kv_format for worker in workers}}


def _affinity(tenant: Tenant, spec: GenerationSpec, prompt: PackedTokens) -> Affinity:
    return affinity(tenant.id, spec.partition, spec.hints.session_id, prompt)


def _max_tokens(spec: GenerationSpec, part: PoolPart, prompt_tokens: int, workers: Sequence[WorkerRecord]) -> int:
    """What was asked for, else what fits; where not even one token fits, the choice of a worker says so."""
    asked, at_least = spec.sampling.max_tokens, spec.sampling.min_tokens
    if asked is not None:
        return asked
    room = max(answer_room(worker, part, prompt_tokens, spec.sampling.n) for worker in workers)
    fitting = max(1, min(room, max(DEFAULT_MAX_TOKENS, at_least)))
    if at_least > fitting:
        raise InvalidRequestError(
            "sampling_params.min_tokens", f"min_tokens is {at_least}; after this prompt at most {fitting} tokens fit"
        )
    return fitting
