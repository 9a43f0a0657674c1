"""What a run takes the place of in this process: random numbers, gRPC's transport, the engine's thread, the logs.

The product has clocks, stores and runners given to it. What it takes from the standard library and from grpc by itself
is exchanged here while a run lasts, and put back after it.
"""

from __future__ import annotations

import random
import secrets
import uuid
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import grpc
import structlog

import worker.host
from cache_store import redis_index
from tests.simulation.engine_thread import SimulatedEngineThread
from tests.simulation.loop import current_process
from tests.simulation.network import Network
from tests.simulation.rpc import SimulatedChannel, SimulatedServer
from tests.simulation.trace import Trace


class Entropy:
    """Numbers of one seed in place of the machine's."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(f"entropy/{seed}")

    def token_bytes(self, nbytes: int | None = None) -> bytes:
        return self._rng.randbytes(32 if nbytes is None else nbytes)

    def token_hex(self, nbytes: int | None = None) -> str:
        return self.token_bytes(nbytes).hex()

    def randbits(self, k: int) -> int:
        return self._rng.getrandbits(k)

    def uuid4(self) -> uuid.UUID:
        return uuid.UUID(bytes=self.token_bytes(16), version=4)

    def uniform(self, a: float, b: float) -> float:
        return self._rng.uniform(a, b)


@contextmanager
def surrounded(seed: int, stream_entries: int, network: Network, trace: Trace) -> Iterator[None]:
    """While the block runs, what the product takes from its surroundings is simulated."""
    entropy = Entropy(seed)
    config = structlog.get_config()

    def note(_: Any, method: str, event: MutableMapping[str, Any]) -> Mapping[str, Any]:
        owner = current_process()
        fields = " ".join(f"{key}={value}" for key, value in event.items() if key not in {"event", "exc_info"})
        trace.note(owner.name if owner else "-", f"{method}: {event['event']} {fields}")
        raise structlog.DropEvent

    with ExitStack() as stack:
        for name in ("token_bytes", "token_hex", "randbits"):
            stack.enter_context(patch.object(secrets, name, getattr(entropy, name)))
        stack.enter_context(patch.object(uuid, "uuid4", entropy.uuid4))
        stack.enter_context(patch.object(random, "uniform", entropy.uniform))
        stack.enter_context(patch.object(grpc.aio, "server", lambda *_, **__: SimulatedServer(network)))
        stack.enter_context(
            patch.object(grpc.aio, "insecure_channel", lambda address, **_: SimulatedChannel(network, address))
        )
        stack.enter_context(patch.object(redis_index, "MAX_STREAM_ENTRIES", stream_entries))
        stack.enter_context(patch.object(worker.host, "EngineThread", SimulatedEngineThread))
        structlog.configure(processors=[note], wrapper_class=structlog.BoundLogger, cache_logger_on_first_use=False)
        try:
            yield
        finally:
            structlog.configure(**config)
