"""From messages of the cache service to values: every check that needs neither a model nor a worker.

What a prompt, a partition or a time to live is stands in `services/router/validation.py`. Holds no state.
"""

from __future__ import annotations

from stemcache.admin.v1 import admin_pb2
from stemcache.v1 import cache_pb2, inference_pb2

from cache_store.errors import InvalidRequestError
from services.router.generation import CacheMode, EndTokens, GenerationSpec, Sampling
from services.router.validation import partition_of, prompt_of, shown, ttl_of
from services.tenants.purge import EVERYTHING, ModelScope, PartitionScope, PurgeScope

MAX_PIN_ID_BYTES = 128
MAX_NAME_BYTES = 128

_ONE_TOKEN = Sampling(
    temperature=0.0,
    top_p=1.0,
    top_k=0,
    seed=0,
    max_tokens=1,
    min_tokens=0,
    stop=(),
    stop_token_ids=(),
    end_tokens=EndTokens.IGNORE,
    n=1,
)


def prefix_spec(request: cache_pb2.LookupPrefixRequest | cache_pb2.PinPrefixRequest) -> GenerationSpec:
    """The shortest request that would use the prefix, to plan by."""
    return GenerationSpec(
        request_id=None,
        model=request.model,
        prompt=prompt_of(request.prompt),
        sampling=_ONE_TOKEN,
        cache_mode=CacheMode.READ_ONLY,
        partition=partition_of("partition", request.partition),
    )


def pin_ttl(request: cache_pb2.PinPrefixRequest) -> float:
    """For how long, in seconds."""
    if not request.HasField("ttl"):
        raise InvalidRequestError("ttl", "there is no ttl; say for how long the prefix is to be pinned, 1 s to 30 days")
    return ttl_of("ttl", request.ttl)


def display_name(request: cache_pb2.PinPrefixRequest) -> str:
    """For lists."""
    size = len(request.display_name.encode())
    if size > MAX_NAME_BYTES:
        raise InvalidRequestError("display_name", f"display_name has {size} bytes; at most {MAX_NAME_BYTES}")
    return shown("display_name", request.display_name)


def pin_id(request: cache_pb2.UnpinPrefixRequest) -> str:
    """Of the pin to end."""
    size = len(request.pin_id.encode())
    if not 1 <= size <= MAX_PIN_ID_BYTES:
        raise InvalidRequestError(
            "pin_id", f"pin_id has {size} bytes; 1 to {MAX_PIN_ID_BYTES}, as PinPrefix and ListPins tell it"
        )
    return request.pin_id


def purge_scope(request: cache_pb2.PurgeCacheRequest | admin_pb2.PurgeTenantCacheRequest) -> PurgeScope:
    """What is to be purged. Whether a model is served here is not known here."""
    match request.WhichOneof("scope"):
        case "everything" if request.everything:
            return EVERYTHING
        case "everything":
            raise InvalidRequestError(
                "everything", "everything is false; set it to true, or name a partition or a model"
            )
        case "partition":
            return PartitionScope(partition_of("partition", request.partition))
        case "model" if request.model:
            return ModelScope(request.model)
        case "model":
            raise InvalidRequestError("model", "model is empty; name the model whose cache is to be purged")
    raise InvalidRequestError("scope", "nothing to purge is named; set everything, partition or model")


def warm_generation(request: cache_pb2.WarmPrefixRequest) -> inference_pb2.GenerateRequest:
    """The generation of one token that stores the prompt's blocks."""
    policy = request.cache_policy
    if policy.mode not in (inference_pb2.CachePolicy.MODE_UNSPECIFIED, inference_pb2.CachePolicy.MODE_READ_WRITE):
        raise InvalidRequestError("cache_policy.mode", "nothing would be stored in this mode; use READ_WRITE")
    if policy.no_store:
        raise InvalidRequestError("cache_policy.no_store", "nothing would be stored with no_store; leave it out")
    return inference_pb2.GenerateRequest(
        request_id=request.request_id,
        model=request.model,
        prompt=request.prompt,
        sampling_params=inference_pb2.SamplingParams(max_tokens=1, seed=0, ignore_eos=True),
        cache_policy=policy,
    )
