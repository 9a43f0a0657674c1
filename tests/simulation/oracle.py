"""What is true of a run, kept apart from the product: who sent what where, what was purged, and what was found wrong.

Tokens are compared with `worker/digest_rule.py`, which computes them from the prompt alone. What may be reused is
bounded by brute force: the longest common beginning with anything that was sent before in the same space, to any
worker for the engine's view, to anybody since the last purge for the client's.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from cache_store.tokens import TOKEN_BYTES, PackedTokens, count, pack
from services.tenants.directory import CONTROL_AGE_BOUND_S
from tests.simulation.loop import VirtualLoop
from tests.simulation.trace import Trace
from worker.digest_rule import expected_output
from worker.digest_runner import digest_model
from worker.requests import CacheMode, EngineOutput, EngineRequest, Generated, RequestKey, Started
from worker.sampling import SamplingParams

BLOCK_SIZE = 4
VOCAB_SIZE = 997
MODEL = digest_model(block_size=BLOCK_SIZE, vocab_size=VOCAB_SIZE, max_model_len=512, eos_token_ids=())
PURGE_SLACK_S = 1.0
"""Beyond the moment at which a purge is said to be complete: a request that had been admitted just before it."""

Scope = tuple[str, ...]
Text = tuple[str, RequestKey, int]
"""Worker, request and sample."""


class WrongError(AssertionError):
    """What must never be was seen."""


@dataclass
class Sent:
    """One request of a client."""

    tenant: str
    partition: str
    prompt: PackedTokens
    answers: tuple[tuple[int, ...], ...]
    """What it will be answered: all of it may be cached, whether it was received or not."""
    begun_s: float
    ended_s: float = float("inf")
    num_tries: int = 0

    def texts(self) -> list[bytes]:
        """All that may be cached of it."""
        return [bytes(self.prompt) + bytes(pack(answer)) for answer in self.answers]


@dataclass
class Purged:
    """A purge that was acknowledged."""

    tenant: str
    partition: str | None
    """None: everything of the tenant."""
    router: str
    begun_s: float
    done_s: float
    acknowledged: frozenset[str]
    """Incarnations."""
    roots: frozenset[bytes]
    """Domains of it that engines knew when it began."""

    @property
    def complete_s(self) -> float:
        return self.done_s + CONTROL_AGE_BOUND_S + PURGE_SLACK_S

    def covers(self, tenant: str, partition: str) -> bool:
        return tenant == self.tenant and self.partition in (None, partition)


class Oracle:
    """Of one run."""

    def __init__(self, loop: VirtualLoop, trace: Trace) -> None:
        self._loop = loop
        self._trace = trace
        self.sent: list[Sent] = []
        self.purges: list[Purged] = []
        self.roots: dict[bytes, tuple[str, str]] = {}
        """Tenant and keyed partition of each domain that an engine saw."""
        self.texts: dict[Scope, dict[Text, bytearray]] = defaultdict(dict)
        """What workers have computed in each domain: what one of them has, others may fetch."""
        self.num_hits = 0
        self.num_tokens = 0
        self.num_resumed = 0
        self._expected: dict[object, tuple[tuple[int, ...], ...]] = {}

    def note(self, place: str, what: str) -> None:
        """Into the trace."""
        self._trace.note(place, what)

    def wrong(self, what: str) -> None:
        """Ends the run."""
        self._trace.note("oracle", f"WRONG: {what}")
        raise WrongError(what)

    def answer(self, prompt: PackedTokens, sampling: SamplingParams, num_samples: int) -> tuple[tuple[int, ...], ...]:
        """The tokens of all samples, computed from the prompt alone."""
        key = (bytes(prompt), sampling, num_samples)
        if key not in self._expected:
            samples = expected_output(MODEL.geometry, VOCAB_SIZE, prompt, sampling, num_samples)
            self._expected[key] = tuple(sample.token_ids for sample in samples)
        return self._expected[key]

    def require_reusable(self, own: Sent, router: str, asked_s: float, cached: int) -> None:
        """A client was told that so many tokens of its prompt were reused; it began to ask that router at `asked_s`."""
        since_s = 0.0
        for purge in self.purges:
            if purge.covers(own.tenant, own.partition):
                in_force_s = purge.done_s if router == purge.router else purge.complete_s
                if asked_s >= in_force_s:
                    since_s = max(since_s, purge.begun_s)
        known = (
            text
            for each in self.sent
            if (each is not own or own.num_tries > 1)
            and (each.tenant, each.partition) == (own.tenant, own.partition)
            and each.ended_s >= since_s
            for text in each.texts()
        )
        bound = max((common(own.prompt, text) for text in known), default=0)
        self.num_hits += cached > 0
        if cached > min(bound, count(own.prompt) - 1):
            self.wrong(
                f"{own.tenant}/{own.partition} was served {cached} cached tokens by {router}, at most {bound} of its "
                f"prompt were sent since {since_s:.3f}"
            )


class EngineOracle:
    """Watches one worker's engine."""

    def __init__(self, oracle: Oracle, name: str, loop: VirtualLoop) -> None:
        self._oracle = oracle
        self._name = name
        self._loop = loop
        self._requests: dict[RequestKey, tuple[EngineRequest, float]] = {}
        self._texts = oracle.texts
        self.incarnation = ""

    def note_request(self, request: EngineRequest) -> None:
        """It is handed to the engine."""
        domain = request.domain
        self._oracle.roots[domain.root] = (domain.tenant, domain.partition)
        self._requests[request.key] = (request, self._loop.time())
        if request.cache_mode is CacheMode.READ_WRITE:
            for sample in range(request.num_samples):
                self._texts[_scope(request)][self._name, request.key, sample] = bytearray(request.prompt)

    def note_output(self, output: EngineOutput) -> None:
        """It answers."""
        request, since_s = self._requests[output.key]
        if isinstance(output, Started):
            self._check(request, since_s, output.cached.total)
        elif isinstance(output, Generated):
            text = self._texts[_scope(request)].get((self._name, output.key, output.sample_index))
            if text is not None:
                text += pack(output.token_ids)

    def _check(self, request: EngineRequest, since_s: float, cached: int) -> None:
        if not cached:
            return
        if request.cache_mode in (CacheMode.BYPASS, CacheMode.PURGED):
            self._oracle.wrong(f"{self._name} reused {cached} tokens for a request that bypasses the cache")
        texts, own = self._texts[_scope(request)], (self._name, request.key)
        bound = max(
            (common(request.prompt, text) for (name, key, _), text in texts.items() if (name, key) != own), default=0
        )
        if cached > bound:
            self._oracle.wrong(f"{self._name} reused {cached} tokens of which its domain has seen {bound}")
        for purge in self._oracle.purges:
            if request.domain.root in purge.roots:
                gone_s = purge.done_s if self.incarnation in purge.acknowledged else purge.complete_s
                if since_s > gone_s:
                    self._oracle.wrong(f"{self._name} reused {cached} tokens that were purged at {purge.done_s:.3f}")


def _scope(request: EngineRequest) -> Scope:
    domain = request.domain
    return (domain.tenant, domain.partition, domain.epoch, domain.tenant_epoch, domain.kv_format.hex())


def common(prompt: bytes, text: bytes | bytearray) -> int:
    """Tokens with which both begin."""
    length = min(len(prompt), len(text))
    if prompt[:length] == text[:length]:
        return length // TOKEN_BYTES
    low, high = 0, length
    while low < high - 1:
        middle = (low + high) // 2
        if prompt[:middle] == text[:middle]:
            low = middle
        else:
            high = middle
    return low // TOKEN_BYTES


def own_scopes(oracle: Oracle, tenant: Any, partition: str | None) -> frozenset[bytes]:
    """Roots of the domains of a tenant, or of one of its partitions, that engines have seen."""
    return frozenset(
        root
        for root, (owner, name) in oracle.roots.items()
        if owner == tenant and (partition is None or name == partition)
    )
