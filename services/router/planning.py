"""What has to be known before a worker is chosen: model, token ids, seed, domains, and who holds the prefix.

Knows tenants' secrets for as long as it derives domains. Decides nothing about load. Owns no state but whether the
index answered last time.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from cache_store.digest import DIGEST_BYTES, chain
from cache_store.domain import Domain, FormatDigest
from cache_store.errors import InvalidRequestError
from cache_store.index import Incarnation, IndexReader, IndexUnavailableError
from cache_store.quota import PoolPart
from cache_store.registry import WorkerRecord
from cache_store.tokens import PackedTokens, count
from services.router.generation import CacheMode, GenerationSpec
from services.router.heat import PrefixHeat
from services.router.outage import Outage
from services.router.outlook import Outlook, OutlookMaker, Outlooks
from services.router.pool_parts import PoolParts
from services.router.registry_view import RegistryView
from services.router.rendezvous import Affinity, affinity, of_prompt
from services.router.room import answer_room
from services.router.served_models import ServedModel, ServedModels
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

    model: ServedModel
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
    held_blocks: Mapping[Incarnation, int]
    """Leading blocks that the index promises by itself; absent is 0."""
    outlooks: Outlooks
    degraded: bool
    part: PoolPart
    """What the tenant may have of each worker's pool."""
    affinity: Affinity
    """What it has in common with requests that share its prefix."""
    prompt_affinity: Affinity
    """What it has in common with requests for the same prompt."""
    heat: float
    """Requests that lately began with what is held of this one."""


@dataclass(frozen=True, slots=True)
class _Found:
    chains: Mapping[FormatDigest, bytes]
    tokens: Mapping[Incarnation, int]
    blocks: Mapping[Incarnation, int]
    outlooks: tuple[Outlook, ...]
    heat: float
    is_current: bool
    """False: the index is out of reach."""


_NOTHING = _Found({}, {}, {}, (), 0.0, is_current=True)


class Planner:
    """Makes plans."""

    def __init__(
        self,
        directory: TenantDirectory,
        tokenizers: Tokenizers,
        view: RegistryView,
        index: IndexReader,
        speculations: Speculations,
        outlooks: OutlookMaker,
        heat: PrefixHeat,
    ) -> None:
        self._directory = directory
        self._tokenizers = tokenizers
        self._view = view
        self._index = index
        self._speculations = speculations
        self._outlooks = outlooks
        self._heat = heat
        self.models = ServedModels(directory, view, tokenizers.models)
        """What tenants can call."""
        self._parts = PoolParts(directory)
        self._outage = Outage("index")

    def latest(self, tenant: Tenant) -> KnownTenant:
        """The tenant, to derive domains by."""
        return self._directory.latest(tenant)

    async def plan(self, tenant: Tenant, spec: GenerationSpec) -> Plan:
        """Raises InvalidRequestError, NotFoundError, UnavailableError."""
        model = self.models.named(tenant.id, spec.model)
        workers = self.models.workers_of(model)
        if spec.sampling.stop and self._tokenizers.get(model.base) is None:
            raise InvalidRequestError(
                "sampling_params.stop",
                f"model {model.name!r} has no tokenizer here, so no text to stop at; use stop_token_ids",
            )
        prompt = await self._tokenizers.encode(model.base, spec.prompt)
        _check_tokens(spec, prompt, workers)
        is_stale = self._directory.is_stale
        cache_mode = CacheMode.BYPASS if is_stale else spec.cache_mode
        known = self.latest(tenant)
        domains = _domains(known, spec.partition, model.name, _formats(workers))
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
            held_blocks=found.blocks,
            outlooks=Outlooks(cache_mode, is_stale, found.outlooks),
            degraded=is_stale or not (found.is_current and self._view.is_reachable and self._view.is_renewed),
            part=part,
            affinity=_affinity(tenant, spec, prompt),
            prompt_affinity=of_prompt(prompt),
            heat=found.heat,
        )

    def renewed(self, plan: Plan, tenant: Tenant, spec: GenerationSpec) -> Plan:
        """The plan by what is known now: it may have waited, and what was purged meanwhile is not asked for.

        So is an adapter that was replaced. Raises NotFoundError for one that was unloaded, UnavailableError.
        """
        known = self.latest(tenant)
        model = self.models.named(tenant.id, plan.model.name)
        if self._directory.is_stale:
            plan = replace(plan, cache_mode=CacheMode.BYPASS, degraded=True)
        if known is plan.known and model == plan.model:
            return plan
        if known.tenant.fence == plan.known.tenant.fence and model == plan.model:
            return plan if known.generation == plan.known.generation else replace(plan, known=known)
        formats = plan.domains.keys() if model == plan.model else _formats(self.models.workers_of(model))
        domains = _domains(known, spec.partition, model.name, formats)
        return replace(plan, model=model, known=known, domains=domains, chains={}, matched_tokens={}, held_blocks={})

    async def _lookup(
        self, domains: Mapping[FormatDigest, Domain], prompt: PackedTokens, workers: Sequence[WorkerRecord]
    ) -> _Found:
        """What each worker holds of the prompt, or will soon."""
        chains: dict[FormatDigest, bytes] = {}
        matched: dict[Incarnation, int] = {}
        held: dict[Incarnation, int] = {}
        outlooks: list[Outlook] = []
        heat = 0.0
        reason = ""
        for kv_format, domain in domains.items():
            block_sizes = {worker.incarnation: worker.block_size for worker in workers if worker.kv_format == kv_format}
            block_size = next(iter(block_sizes.values()))  # part of the format
            digests = chains[kv_format] = b"".join(chain(domain, prompt, block_size))
            try:
                blocks = await self._index.lookup(domain.tag, digests, list(block_sizes))
            except IndexUnavailableError as error:
                blocks, reason = error.known, str(error)
            held.update(blocks)
            num_held = 0
            for incarnation in block_sizes:
                num_here = self._speculations.leading(domain.tag, incarnation, digests, blocks.get(incarnation, 0))
                num_held = max(num_held, num_here)
                matched[incarnation] = num_here * block_size
            outlooks.append(self._outlooks.make(domain, digests, block_size, num_held))
            if num_held:
                last_held = digests[(num_held - 1) * DIGEST_BYTES : num_held * DIGEST_BYTES]
                heat = max(heat, self._heat.note(domain.tag, last_held))
        if reason:
            self._outage.failed(reason)
        else:
            self._outage.succeeded()
        return _Found(chains, matched, held, tuple(outlooks), heat, is_current=not reason)


def _check_tokens(spec: GenerationSpec, prompt: PackedTokens, workers: Sequence[WorkerRecord]) -> None:
    vocab_size = min(worker.vocab_size for worker in workers)
    check_vocabulary("prompt.token_ids", prompt, vocab_size)
    largest = max(spec.sampling.stop_token_ids, default=0)
    if largest >= vocab_size:
        raise InvalidRequestError(
            "sampling_params.stop_token_ids",
            f"token id {largest} is outside the vocabulary; the model's ids are 0 to {vocab_size - 1}",
        )


def _formats(workers: Sequence[WorkerRecord]) -> set[FormatDigest]:
    return {worker.kv_format for worker in workers}


def _domains(
    known: KnownTenant, partition: str, model: str, formats: Iterable[FormatDigest]
) -> Mapping[FormatDigest, Domain]:
    return {each: known.domain(partition, model, each) for each in formats}


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
