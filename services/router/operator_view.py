"""What only the operator sees in an answer: why the request went where it went, with the load of workers.

A call shows it where it carries the operator's token beside the tenant's key. Knows the token and the records; holds
no state of its own.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable

from stemcache.v1 import inference_pb2 as pb

from cache_store.errors import UnauthenticatedError
from services.router.explain import explain
from services.router.records import FirstToken, RequestRecord, RequestRecords, Routed

OPERATOR_TOKEN_KEY = "stemcache-operator-token"  # noqa: S105 - the name of it in the metadata


class OperatorView:
    """Of one router."""

    def __init__(self, admin_token: str, records: RequestRecords) -> None:
        self._token = admin_token.encode("ascii")
        self._records = records

    def is_asked_for(self, metadata: Iterable[tuple[str, str | bytes]]) -> bool:
        """Whether the caller proves that it is the operator. Raises UnauthenticatedError for another token."""
        given = [value for name, value in metadata if name == OPERATOR_TOKEN_KEY]
        if not given:
            return False
        found = given[0].encode("utf-8", "surrogatepass") if isinstance(given[0], str) else given[0]
        if len(given) > 1 or not hmac.compare_digest(found, self._token):
            raise UnauthenticatedError(f"{OPERATOR_TOKEN_KEY} is not the operator's token; leave it out, or correct it")
        return True

    def show(self, route: pb.Route, tenant_name: str, request_id: str) -> None:
        """Adds to `route` why it was taken, where that is remembered."""
        record = self._records.find(tenant_name, request_id)
        if record is not None:
            route.decision.CopyFrom(_decision(record))


def _decision(record: RequestRecord) -> pb.RouteDecision:
    explanation = explain(record)
    routed = next((entry for entry in reversed(record.entries) if isinstance(entry, Routed)), None)
    if routed is None:
        return pb.RouteDecision(reason=explanation.route, reuse=explanation.reuse)
    first = next((entry for entry in record.entries if isinstance(entry, FirstToken)), None)
    return pb.RouteDecision(
        reason=explanation.route,
        reuse=explanation.reuse,
        uncached_tokens=routed.prompt_tokens - (first.cached.total if first is not None else 0),
        candidates=[
            pb.RouteCandidate(
                worker_id=term.worker_id,
                matched_tokens=term.matched_tokens,
                queue_s=term.queue_s,
                prefill_s=term.prefill_s,
                recompute_s=term.recompute_s,
                cost_s=term.cost,
            )
            for term in routed.terms
        ],
    )
