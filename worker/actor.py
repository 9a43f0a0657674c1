"""A worker as a Ray actor: runs a `WorkerHost` on a thread and event loop of its own, in a process of its own.

Ray places, restarts and ends the process; it is never on the path of a token. A host that ended by a failure ends the
process with it: Ray starts it again, under the same worker id and a fresh incarnation. A host that left because it was
told to ends it for good: Ray starts no other. The only module of the worker that imports Ray.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Any, TypeVar

import ray
import ray.actor
import ray.util
import structlog
import uvloop

from cache_store.clock import SystemClock
from cache_store.errors import PreconditionError, StemcacheError
from cache_store.log_setup import log_as_json
from cache_store.registry import SupersededError, WorkerRecord
from worker.build import build_runner, connect_stores
from worker.config import WorkerConfig
from worker.host import WorkerHost, WorkerParts

FAILURE_EXIT_CODE = 70
"""EX_SOFTWARE: the host failed inside."""

_STOP_TIMEOUT_S = 15.0

_log = structlog.get_logger(__name__)

ResultT = TypeVar("ResultT")


class Reach(StrEnum):
    """Where a worker can be called from."""

    CONFIGURED = "configured"
    """`listen_host` as it stands, 127.0.0.1 by default."""
    NODE = "node"
    """The address of the node where Ray placed it, so that routers on other machines reach it."""


def actor_environment(config: WorkerConfig) -> Mapping[str, str]:
    """Environment of the actor's process: thread pools of native code read it when they are loaded.

    Ray sets OMP_NUM_THREADS to 1 of its own; waiting OpenMP threads must not spin beside other workers.
    """
    threads = str(config.torch_threads)
    return {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "OMP_WAIT_POLICY": "PASSIVE"}


class WorkerActor:
    """One worker. Constructed by Ray; returns from the constructor when it serves."""

    def __init__(self, config: WorkerConfig, reach: Reach) -> None:
        log_as_json()
        self._fingerprint = config.fingerprint()
        if reach is Reach.NODE:
            node = ray.util.get_node_ip_address()
            metrics = config.metrics and replace(config.metrics, host=node)  # with a token: else it raises
            config = replace(config, listen_host=node, metrics=metrics)
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="worker-loop", daemon=True)
        self._thread.start()
        parts = WorkerParts(build_runner, connect_stores, SystemClock())
        try:
            self._host = self._wait(WorkerHost.start(config, parts), timeout_s=None)
        except Exception as error:
            raise _one_sentence(error) from None
        gc.collect()
        gc.freeze()  # model and block pool stay: not to be looked through again and again while steps wait
        self._watch = asyncio.run_coroutine_threadsafe(self._end_with_host(), self._loop)

    def describe(self) -> WorkerRecord:
        """What it tells the registry: address, incarnation, model, pool and load.

        Raises SupersededError where it has ended because a newer incarnation took its worker id.
        """
        if isinstance(self._host.failure, SupersededError):
            raise self._host.failure
        return self._host.record()

    def fingerprint(self) -> str:
        """Of the configuration that it was started with; empty where it has failed or leaves."""
        return self._fingerprint if self._host.healthy and not self._host.record().draining else ""

    def pid(self) -> int:
        """Process id on its node."""
        return os.getpid()

    def stop(self, drain_s: float) -> None:
        """Refuses new requests, gives the running ones `drain_s` to end, then leaves registry and index."""
        self._watch.cancel()
        self._wait(self._host.drain(drain_s), drain_s + _STOP_TIMEOUT_S)
        self._wait(self._host.stop(), _STOP_TIMEOUT_S)

    def leave(self) -> None:
        """Ends the process for good, once what was asked of it before is answered."""
        sys.stdout.flush()
        ray.actor.exit_actor()

    async def _end_with_host(self) -> None:
        await self._host.wait_ended()
        if isinstance(self._host.failure, SupersededError):
            return  # another start would take the id back, and so on for ever
        if self._host.has_retired:
            await asyncio.to_thread(self._leave)
            return
        _log.error("worker_process_ends", exit_code=FAILURE_EXIT_CODE)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(FAILURE_EXIT_CODE)  # not sys.exit: Ray takes that for an intended end and does not restart

    def _leave(self) -> None:
        """An actor can exit for good in a call only: it calls itself."""
        _log.info("worker_process_leaves")
        ray.get_runtime_context().current_actor.leave.remote()

    def _wait(self, work: Coroutine[Any, Any, ResultT], timeout_s: float | None) -> ResultT:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout_s)


def _one_sentence(error: Exception) -> PreconditionError:
    """What crosses to the launcher's process: Ray pickles it, which not every exception survives."""
    _log.error("worker_start_failed", exc_info=error)
    known = isinstance(error, StemcacheError)
    return PreconditionError(str(error) if known else f"{type(error).__name__}: {error}")
