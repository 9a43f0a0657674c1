"""The workers as this router sees them: polled from the registry, with what the router itself knows beside.

Refuses workers that do not fit by name. While the registry is away the last view stays. Where it answers and shows
nobody, workers may be unable to renew, or all gone: each is asked itself, and those stay that say that they are who
they were. A worker that did not answer, or that the registry no longer shows, is suspected: the last resort; it is lost
when another incarnation has taken its place or when it stays away, and then everything that runs on it is told. Owned
by one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Container, Mapping
from dataclasses import replace

import structlog

from cache_store.clock import Clock
from cache_store.index import Incarnation
from cache_store.registry import (
    LEASE_S,
    PROTOCOL_VERSION,
    RENEW_S,
    RegistryReader,
    RegistryUnavailableError,
    WorkerId,
    WorkerRecord,
)
from cache_store.request_token import TOKEN_LIFETIME_S
from services.router.assignments import Assignment, Assignments
from services.router.outage import Outage
from services.router.routing import WorkerView

LOST_AFTER_S = 3 * RENEW_S
"""A lease that ran out is not believed at once: a registry that restarted empty shows nobody for a moment."""

_log = structlog.get_logger()


class _Known:
    def __init__(self, record: WorkerRecord, now_s: float) -> None:
        self.record = record
        self.record_s = now_s
        """When the record was read, by the monotonic clock, as all times here."""
        self.seen_s = now_s
        """When it was last listed, or could have been: the registry did not answer."""
        self.is_listed = True
        self.is_leaving = record.draining
        """As far as anybody knows; it does not come back from that."""
        self.suspected_until_s = now_s


class RegistryView:
    """State of one router."""

    def __init__(
        self,
        reader: RegistryReader,
        clock: Clock,
        tokenizer_digests: Mapping[str, str],
        on_lost: Callable[[Incarnation], None],
        is_there: Callable[[WorkerRecord], Awaitable[bool]],
    ) -> None:
        """`tokenizer_digests`: of this router's tokenizers, by model. `on_lost` is called once per incarnation.

        `is_there` asks a worker whether it still is that incarnation; it answers soon.
        """
        self._reader = reader
        self._clock = clock
        self._tokenizer_digests = dict(tokenizer_digests)
        self._on_lost = on_lost
        self._is_there = is_there
        self._known: dict[Incarnation, _Known] = {}
        self._models: tuple[str, ...] = ()
        self._refused: dict[WorkerId, str] = {}
        self._assignments = Assignments(clock)
        self._outage = Outage("registry")
        self._silence = Outage("renewals")

    @property
    def is_renewed(self) -> bool:
        """Whether the registry showed anybody last time, where anybody is known who answers."""
        return not self._silence.is_away

    @property
    def is_reachable(self) -> bool:
        """Whether the registry answered last time."""
        return not self._outage.is_away

    @property
    def refused(self) -> tuple[str, ...]:
        """Live workers that do not fit, and why; by worker id."""
        return tuple(reason for _, reason in sorted(self._refused.items()))

    @property
    def is_serving(self) -> bool:
        """Whether some worker takes requests."""
        return any(known.is_listed and not known.record.draining for known in self._known.values())

    def records(self) -> tuple[WorkerRecord, ...]:
        """Workers that are listed, by worker id."""
        listed = (known.record for known in self._known.values() if known.is_listed)
        return tuple(sorted(listed, key=lambda record: record.worker_id))

    def incarnations(self) -> tuple[Incarnation, ...]:
        """Of all known workers."""
        return tuple(self._known)

    def models(self) -> tuple[str, ...]:
        """Models of known workers, sorted."""
        return self._models

    def known_records(self) -> tuple[WorkerRecord, ...]:
        """Of all known workers, also of those that are suspected."""
        return tuple([known.record for known in self._known.values()])

    def snapshot(self) -> tuple[WorkerView, ...]:
        """All known workers, for a choice."""
        now_s = self._clock.monotonic_s()
        views = []
        for incarnation, known in self._known.items():
            pending = self._assignments.pending(incarnation, known.record.load)
            views.append(
                WorkerView(
                    record=known.record,
                    suspected=not known.is_listed or now_s < known.suspected_until_s,
                    pending_prefill_tokens=pending.prefill_tokens,
                    pending_requests=pending.requests,
                    request_s=self._assignments.request_s(incarnation),
                )
            )
        return tuple(views)

    def token_expiry_s(self, worker: WorkerRecord) -> float:
        """When a request token made now for the worker expires, by the worker's own clock."""
        return self.clock_unix_s(worker) + TOKEN_LIFETIME_S

    def clock_unix_s(self, worker: WorkerRecord) -> float:
        """What the worker's own clock says now: those of router and worker may be apart, and may be set."""
        known = self._known.get(worker.incarnation)
        if known is None or not known.record.clock_unix_s:
            return self._clock.unix_s()
        return known.record.clock_unix_s + self._clock.monotonic_s() - known.record_s

    def assign(self, incarnation: Incarnation, prefill_tokens: int) -> Assignment:
        """Notes a request that is on its way to a worker."""
        return self._assignments.add(incarnation, prefill_tokens)

    def suspect(self, incarnation: Incarnation) -> None:
        """Notes that a worker did not answer; until its lease would have run out it is the last resort."""
        known = self._known.get(incarnation)
        if known is not None:
            known.suspected_until_s = self._clock.monotonic_s() + LEASE_S
            _log.warning("worker.suspected", worker_id=known.record.worker_id)

    def note_leaving(self, incarnation: Incarnation) -> None:
        """Notes that a worker takes nothing new for the rest of its life, whatever the registry shows."""
        known = self._known.get(incarnation)
        if known is not None:
            known.is_leaving, known.record = True, replace(known.record, draining=True)

    async def run(self) -> None:
        """Polls until cancelled."""
        while True:
            await self.poll()
            await asyncio.sleep(RENEW_S)

    async def poll(self) -> None:
        """One poll; a registry that does not answer leaves the view as it is."""
        try:
            records = await self._reader.workers()
        except RegistryUnavailableError as error:
            self._outage.failed(str(error))
            for known in self._known.values():  # back, it shows nobody until workers have renewed
                known.seen_s = self._clock.monotonic_s()
            return
        self._outage.succeeded()
        there = () if records else await self._ask_all()
        if there:
            self._silence.failed("no worker renews its lease; those that answer are kept")
        else:
            self._silence.succeeded()
        self._take(records, there)

    async def _ask_all(self) -> tuple[Incarnation, ...]:
        """Which known incarnations say that they are there."""
        known = {incarnation: each.record for incarnation, each in self._known.items()}
        answers = await asyncio.gather(*map(self._is_there, known.values()))
        return tuple(incarnation for incarnation, is_there in zip(known, answers, strict=True) if is_there)

    def _take(self, records: list[WorkerRecord], there: Collection[Incarnation]) -> None:
        now_s = self._clock.monotonic_s()
        reasons = {record.worker_id: reason for record in records if (reason := self._reason_to_refuse(record))}
        for worker_id, reason in reasons.items():
            if self._refused.get(worker_id) != reason:
                _log.error("worker.refused", worker_id=worker_id, reason=reason)
        self._refused = reasons
        fitting = {record.incarnation: record for record in records if record.worker_id not in reasons}
        for incarnation, record in fitting.items():
            self._see(incarnation, record, now_s)
        for incarnation in there:
            if (known := self._known.get(incarnation)) is not None:
                known.seen_s, known.is_listed = now_s, True
        self._forget({record.worker_id for record in records}, {*fitting, *there}, now_s)
        self._models = tuple(sorted({known.record.model for known in self._known.values()}))

    def _see(self, incarnation: Incarnation, record: WorkerRecord, now_s: float) -> None:
        known = self._known.get(incarnation)
        if known is None:
            known = self._known[incarnation] = _Known(record, now_s)
            _log.info("worker.joined", worker_id=record.worker_id, model=record.model)
        known.is_leaving = known.is_leaving or record.draining
        known.record = replace(record, draining=known.is_leaving)
        known.record_s, known.seen_s, known.is_listed = now_s, now_s, True

    def _forget(self, current: Container[WorkerId], listed: Container[Incarnation], now_s: float) -> None:
        """Loses incarnations that were replaced, and those that stay away."""
        for incarnation, known in list(self._known.items()):
            if incarnation in listed:
                continue
            known.is_listed = False
            if known.record.worker_id in current or now_s - known.seen_s >= LOST_AFTER_S:
                del self._known[incarnation]
                self._assignments.forget(incarnation)
                _log.warning("worker.lost", worker_id=known.record.worker_id)
                self._on_lost(incarnation)

    def _reason_to_refuse(self, record: WorkerRecord) -> str | None:
        if record.protocol_version != PROTOCOL_VERSION:
            return (
                f"{record.worker_id}: its worker protocol has version {record.protocol_version}, "
                f"this router speaks version {PROTOCOL_VERSION}"
            )
        expected = self._tokenizer_digests.get(record.model)
        if expected and record.tokenizer_digest and record.tokenizer_digest != expected:
            return (
                f"{record.worker_id}: its tokenizer is {record.tokenizer_digest}, this router's tokenizer of model "
                f"{record.model!r} is {expected}; give both the same model folder"
            )
        return None
