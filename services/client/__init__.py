"""Typed Python client of the tenants' and the operator's API. Knows the proto contract, no router and no worker."""

from services.client.adapter_results import LoadedAdapter, WorkerAdapter
from services.client.admin_client import AdminClient
from services.client.admin_requests import TenantTerms
from services.client.async_cache import AsyncTenantCache
from services.client.async_client import AsyncStemcacheClient
from services.client.cache_results import BlocksByTier, CachedPrefix, Pin, Purged
from services.client.errors import (
    ApiAbortedError,
    ApiCancelledError,
    ApiConflictError,
    ApiDeadlineError,
    ApiError,
    ApiInvalidRequestError,
    ApiLimitError,
    ApiNotFoundError,
    ApiUnauthenticatedError,
    ApiUnavailableError,
    ErrorDetails,
    FieldViolation,
    QuotaViolation,
)
from services.client.purge_scope import PurgeEverything, PurgeModel, PurgePartition, PurgeScope
from services.client.requests import (
    CacheHints,
    CacheMode,
    Chat,
    ChatMessage,
    GenerationRequest,
    Prompt,
    Sampling,
    Tokens,
)
from services.client.results import (
    Completion,
    Delta,
    FinishReason,
    Generation,
    GenerationEvent,
    GenerationFinished,
    GenerationStarted,
    ModelCard,
    Route,
    SampleFinish,
    Timings,
    Tokenized,
    Usage,
)
from services.client.sync_cache import TenantCache
from services.client.sync_client import StemcacheClient

__all__ = [
    "AdminClient",
    "ApiAbortedError",
    "ApiCancelledError",
    "ApiConflictError",
    "ApiDeadlineError",
    "ApiError",
    "ApiInvalidRequestError",
    "ApiLimitError",
    "ApiNotFoundError",
    "ApiUnauthenticatedError",
    "ApiUnavailableError",
    "AsyncStemcacheClient",
    "AsyncTenantCache",
    "BlocksByTier",
    "CacheHints",
    "CacheMode",
    "CachedPrefix",
    "Chat",
    "ChatMessage",
    "Completion",
    "Delta",
    "ErrorDetails",
    "FieldViolation",
    "FinishReason",
    "Generation",
    "GenerationEvent",
    "GenerationFinished",
    "GenerationRequest",
    "GenerationStarted",
    "LoadedAdapter",
    "ModelCard",
    "Pin",
    "Prompt",
    "PurgeEverything",
    "PurgeModel",
    "PurgePartition",
    "PurgeScope",
    "Purged",
    "QuotaViolation",
    "Route",
    "SampleFinish",
    "Sampling",
    "StemcacheClient",
    "TenantCache",
    "TenantTerms",
    "Timings",
    "Tokenized",
    "Tokens",
    "Usage",
    "WorkerAdapter",
]
