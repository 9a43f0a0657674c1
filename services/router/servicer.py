"""InferenceService: from calls to generations and back. Thin: what it decides is who is calling.

Every error leaves through the status table. Owns no state.
"""

from __future__ import annotations

from stemcache.v1 import inference_pb2 as pb
from stemcache.v1.inference_pb2_grpc import InferenceServiceServicer

from cache_store.errors import WorkerLostError
from cache_store.tokens import count, unpack
from services.router import messages
from services.router.generation import Finished, GenerationEvent, GenerationLostError, Piece, Started
from services.router.generations import Generations
from services.router.operator_view import OperatorView
from services.router.planning import Planner
from services.router.progress import Progress
from services.router.request_table import Attached
from services.router.tenant_method import Context, for_tenant
from services.router.tokenizers import Tokenizers
from services.router.validation import check_vocabulary, packed_tokens, prompt_of, required_request_id
from services.router.write_watch import WriteWatch
from services.tenants.directory import TenantDirectory
from services.tenants.model import Tenant


class InferenceServicer(InferenceServiceServicer):
    """The service that tenants call."""

    def __init__(
        self,
        directory: TenantDirectory,
        generations: Generations,
        planner: Planner,
        tokenizers: Tokenizers,
        operator: OperatorView,
        write_s: float,
    ) -> None:
        """`write_s`: how long a caller may leave a message unread."""
        self.directory = directory
        """Knows who is calling."""
        self._generations = generations
        self._planner = planner
        self._tokenizers = tokenizers
        self._operator = operator
        self._write_s = write_s

    @for_tenant
    async def Generate(self, tenant: Tenant, request: pb.GenerateRequest, context: Context) -> pb.GenerateResponse:
        metadata = context.invocation_metadata() or ()
        arrival = self._generations.arrival(context.time_remaining(), metadata)
        shows_decision = self._operator.is_asked_for(metadata)
        with self._generations.open(tenant, request, arrival) as attached:
            finished = await _ended(attached.progress)
            started = attached.progress.started
            assert started is not None
            response = messages.response(attached.request_id, started, attached.progress.samples(), finished)
            if shows_decision:
                self._operator.show(response.route, tenant.name, attached.request_id)
            return response

    @for_tenant
    async def GenerateStream(  # type: ignore[override]  # writing, so that leaving early runs `finally` at once
        self, tenant: Tenant, request: pb.GenerateStreamRequest, context: Context
    ) -> None:
        metadata = context.invocation_metadata() or ()
        arrival = self._generations.arrival(context.time_remaining(), metadata)
        shows_decision = self._operator.is_asked_for(metadata)
        with self._generations.open(tenant, request.request, arrival) as attached:
            async with WriteWatch(self._write_s) as watch:
                async for message in _Messages(attached):
                    if shows_decision and message.HasField("started"):
                        self._operator.show(message.started.route, tenant.name, attached.request_id)
                    await watch.written(context.write(message))

    @for_tenant
    async def CancelGeneration(
        self, tenant: Tenant, request: pb.CancelGenerationRequest, context: Context
    ) -> pb.CancelGenerationResponse:
        was_running = self._generations.cancel(tenant, required_request_id(request.request_id))
        return pb.CancelGenerationResponse(was_running=was_running)

    @for_tenant
    async def Tokenize(self, tenant: Tenant, request: pb.TokenizeRequest, context: Context) -> pb.TokenizeResponse:
        prompt = prompt_of(request.prompt)
        model = self._planner.models.named(tenant.id, request.model)
        worker = self._planner.models.workers_of(model)[0]
        tokens = await self._tokenizers.encode(model.base, prompt)
        check_vocabulary("prompt.token_ids", tokens, worker.vocab_size)
        blocks = count(tokens) // worker.block_size
        return pb.TokenizeResponse(token_ids=messages.token_ids(tokens), block_count=blocks)

    @for_tenant
    async def Detokenize(
        self, tenant: Tenant, request: pb.DetokenizeRequest, context: Context
    ) -> pb.DetokenizeResponse:
        tokens = packed_tokens("token_ids", request.token_ids)
        model = self._planner.models.named(tenant.id, request.model)
        check_vocabulary("token_ids", tokens, self._planner.models.workers_of(model)[0].vocab_size)
        return pb.DetokenizeResponse(text=await self._tokenizers.decode_all(model.base, unpack(tokens)))

    @for_tenant
    async def ListModels(
        self, tenant: Tenant, request: pb.ListModelsRequest, context: Context
    ) -> pb.ListModelsResponse:
        return pb.ListModelsResponse(models=messages.models(self._planner.models.listed(tenant.id)))


async def _ended(progress: Progress) -> Finished:
    try:
        return await progress.ended()
    except WorkerLostError as error:
        raise _lost(error, progress) from None


def _lost(error: WorkerLostError, progress: Progress) -> GenerationLostError:
    return error if isinstance(error, GenerationLostError) else GenerationLostError(str(error), progress.samples())


class _Messages:
    """The messages of a stream, as its reader asks for them."""

    def __init__(self, attached: Attached) -> None:
        self._attached = attached
        self._events = attached.progress.events()

    def __aiter__(self) -> _Messages:
        return self

    async def __anext__(self) -> pb.GenerateStreamResponse:
        while True:
            try:
                event = await anext(self._events)
            except WorkerLostError as error:
                raise _lost(error, self._attached.progress) from None
            if (message := _message(self._attached, event)) is not None:
                return message


def _message(attached: Attached, event: GenerationEvent) -> pb.GenerateStreamResponse | None:
    match event:
        case Started():
            return messages.started_event(attached.request_id, event)
        case Piece():
            return messages.delta_event(attached.request_id, event) if event.tokens or event.text else None
        case Finished():
            started = attached.progress.started
            assert started is not None
            return messages.finished_event(attached.request_id, started, attached.progress.samples(), event)
