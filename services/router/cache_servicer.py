"""CacheService: a tenant's own view of its cache. Thin: what it decides is who is calling.

Every error leaves through the status table. Owns no state.
"""

from __future__ import annotations

from stemcache.v1 import cache_pb2 as pb
from stemcache.v1.cache_pb2_grpc import CacheServiceServicer

from cache_store.errors import InvalidRequestError, UnavailableError
from cache_store.registry import RENEW_S
from services.router import cache_validation as valid
from services.router import messages
from services.router.generations import Generations
from services.router.prefixes import PinRecord, Prefixes
from services.router.purge_rate import PurgeRate
from services.router.purges import Purges
from services.router.tenant_method import Context, for_tenant
from services.tenants.directory import TenantDirectory
from services.tenants.model import Tenant


class CacheServicer(CacheServiceServicer):
    """The service by which tenants see and steer what is cached of theirs."""

    def __init__(
        self,
        directory: TenantDirectory,
        generations: Generations,
        prefixes: Prefixes,
        purges: Purges,
        purge_rate: PurgeRate,
    ) -> None:
        self.directory = directory
        """Knows who is calling."""
        self._generations = generations
        self._prefixes = prefixes
        self._purges = purges
        self._purge_rate = purge_rate

    @for_tenant
    async def LookupPrefix(
        self, tenant: Tenant, request: pb.LookupPrefixRequest, context: Context
    ) -> pb.LookupPrefixResponse:
        found = await self._prefixes.lookup(tenant, valid.prefix_spec(request), context.time_remaining())
        return pb.LookupPrefixResponse(
            prompt_tokens=found.prompt_tokens,
            matched_tokens=found.matched.total,
            matched_blocks=found.matched_blocks,
            matched_by_tier=messages.cached_by_tier(found.matched),
        )

    @for_tenant
    async def WarmPrefix(
        self, tenant: Tenant, request: pb.WarmPrefixRequest, context: Context
    ) -> pb.WarmPrefixResponse:
        generation = valid.warm_generation(request)
        if self.directory.is_stale:
            raise UnavailableError("the control data is too old to store anything by; try again", RENEW_S)
        arrival = self._generations.arrival(context.time_remaining())
        try:
            with self._generations.open(tenant, generation, arrival) as attached:
                finished = await attached.progress.ended()
                started = attached.progress.started
        except InvalidRequestError as error:
            field = "prompt" if error.field.startswith("sampling_params") else error.field
            raise InvalidRequestError(field, str(error)) from None
        assert started is not None
        return pb.WarmPrefixResponse(
            usage=messages.usage(started, 0, finished.written_tokens), route=messages.route(started)
        )

    @for_tenant
    async def PinPrefix(self, tenant: Tenant, request: pb.PinPrefixRequest, context: Context) -> pb.PinPrefixResponse:
        spec, name, ttl_s = valid.prefix_spec(request), valid.display_name(request), valid.pin_ttl(request)
        pin = await self._prefixes.pin(tenant, spec, ttl_s, name, context.time_remaining())
        return pb.PinPrefixResponse(pin=_pin(pin))

    @for_tenant
    async def UnpinPrefix(
        self, tenant: Tenant, request: pb.UnpinPrefixRequest, context: Context
    ) -> pb.UnpinPrefixResponse:
        was_pinned = await self._prefixes.unpin(tenant, valid.pin_id(request), context.time_remaining())
        return pb.UnpinPrefixResponse(was_pinned=was_pinned)

    @for_tenant
    async def ListPins(self, tenant: Tenant, request: pb.ListPinsRequest, context: Context) -> pb.ListPinsResponse:
        pins = await self._prefixes.pins(tenant, context.time_remaining())
        return pb.ListPinsResponse(pins=[_pin(each) for each in pins])

    @for_tenant
    async def PurgeCache(
        self, tenant: Tenant, request: pb.PurgeCacheRequest, context: Context
    ) -> pb.PurgeCacheResponse:
        scope = valid.purge_scope(request)
        self._purge_rate.take(tenant.id)
        receipt = await self._purges.purge(tenant.id, scope)
        return pb.PurgeCacheResponse(
            purge_time=messages.timestamp(receipt.purge_unix_s),
            acknowledged_workers=receipt.num_acknowledged,
            pending_workers=receipt.num_pending,
            purged_blocks=messages.blocks_by_tier(receipt.purged),
            complete_time=messages.timestamp(receipt.complete_unix_s),
            uncounted_workers=receipt.num_uncounted,
        )


def _pin(pin: PinRecord) -> pb.Pin:
    return pb.Pin(
        pin_id=pin.pin_id,
        display_name=pin.name,
        model=pin.model,
        block_count=pin.num_blocks,
        size_bytes=pin.size_bytes,
        expire_time=messages.timestamp(pin.expires_unix_s),
        worker_count=pin.num_workers,
    )
