"""All calls of Ray outside the actors: the only module that the launcher needs to know Ray through.

Local: a Ray of its own in a private folder, gone with the launcher whatever ends that. Remote: an existing cluster by
its address, where workers are detached actors and outlive this process until they are stopped by name. Token
authentication is left as Ray has it: on. Ray's processes listen on all interfaces whatever they are told.
"""

from __future__ import annotations

import logging
import re
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import ray
import ray.exceptions
import ray.util
import structlog

from cache_store.errors import PreconditionError, UnavailableError
from services.cluster.ray_session import RaySession
from services.cluster.worker_part import Placed, PlacedState, WorkerSpec
from services.settings import set_ray_environment

NAMESPACE = "stemcache"
OBJECT_STORE_BYTES = 80 << 20
"""Next to Ray's minimum: no tensor goes through it."""

KILL_TIMEOUT_S = 10.0
STOP_SLACK_S = 20.0
"""Beyond the drain time, for a worker to leave registry and index."""

_VITAL = frozenset({"gcs_server", "raylet"})
_EXCEPTION_NAME = re.compile(r"^cache_store\.errors\.\w+: ")
_LEFT = "Worker exit type: INTENDED_USER_EXIT"
"""In what Ray tells of an actor that ended itself for good."""
_NAME_PREFIX = "worker:"
_POLL_S = 0.05
_ANSWER_S = 1.0

_log = structlog.get_logger(__name__)


class RayCluster:
    """Implements `WorkerPlacement`. Used from the main thread; one at a time in a process."""

    def __init__(self, actor_class: type[Any], session: RaySession | None, num_cpus: int) -> None:
        """Made by `start_local` and `connect`. `session` is None for a remote cluster."""
        self._actor_class = actor_class
        self._session = session
        self._num_cpus = num_cpus
        self._actors: dict[str, _Actor] = {}

    @classmethod
    def start_local(cls, actor_class: type[Any], num_cpus: int) -> RayCluster:
        """Starts a Ray of this machine; takes some seconds. `num_cpus` is what workers may ask for together.

        Raises PreconditionError where it does not start or is called from another than the main thread.
        """
        return cls(actor_class, _start_session(num_cpus), num_cpus)

    @classmethod
    def connect(cls, actor_class: type[Any], address: str) -> RayCluster:
        """Joins the cluster at `address` as a driver. Raises PreconditionError where it cannot be reached."""
        try:
            _init({"address": address})
        except PreconditionError as error:
            raise PreconditionError(
                f"{error}; is {address} right, and has this machine the cluster's token (RAY_AUTH_MODE=token, with "
                "RAY_AUTH_TOKEN_PATH or ~/.ray/auth_token)?"
            ) from error
        return cls(actor_class, None, num_cpus=0)

    def failure(self) -> str | None:
        """What of a local Ray ended that it cannot do without; None while it runs, and for a remote cluster."""
        if self._session is None:
            return None
        ended = {name for name, _ in ray._private.worker._global_node.dead_processes()}
        missing = sorted(ended & _VITAL)
        return f"its {' and '.join(missing)} ended" if missing else None

    def restart(self) -> None:
        """Starts a local Ray anew, in a fresh session: every worker that it ran is gone. Raises PreconditionError."""
        assert self._session is not None, "a remote cluster is somebody else's to restart"
        self._actors.clear()
        ray.shutdown()
        self._session.close()
        self._session = _start_session(self._num_cpus)

    @property
    def folder(self) -> Path | None:
        """Where a local Ray keeps its logs while it lives; None for a remote cluster."""
        return self._session.folder if self._session else None

    @property
    def address(self) -> str:
        """For `connect`."""
        return str(ray.get_runtime_context().gcs_address)

    @property
    def num_gpus(self) -> float:
        """GPUs of the whole cluster."""
        return float(ray.cluster_resources().get("GPU", 0.0))

    def create(self, spec: WorkerSpec) -> None:
        """See `WorkerPlacement.create`. Raises PreconditionError for what a local Ray as a whole does not have."""
        self._check_resources(spec)
        left = self._find(spec.worker_id)  # by another launcher, or failed: its configuration may be old
        if left is not None and spec.fingerprint and left.fingerprint() == spec.fingerprint:
            _log.info("worker_taken_over", worker_id=spec.worker_id)
            held = self._actors.get(spec.worker_id)
            if held is None or held.handle != left.handle:  # the handle that made a local actor keeps it alive
                self._actors[spec.worker_id] = left
            return
        if left is not None:
            self._end(spec.worker_id, left)
        options = {
            "name": _NAME_PREFIX + spec.worker_id,
            "lifetime": None if self._session else "detached",
            "max_restarts": -1,
            "max_task_retries": 0,
            "num_cpus": spec.num_cpus,
            "num_gpus": spec.num_gpus,
            "resources": dict(spec.resources),
            "runtime_env": {"env_vars": dict(spec.environment)},
        }
        try:
            handle = ray.remote(self._actor_class).options(**options).remote(*spec.arguments)
        except (ray.exceptions.RayError, ValueError) as error:
            raise UnavailableError(f"Ray does not place {spec.worker_id}: {error}", retry_after_s=1.0) from error
        self._actors[spec.worker_id] = _Actor(handle)

    def look(self, worker_id: str) -> Placed:
        """See `WorkerPlacement.look`."""
        actor = self._actors.get(worker_id)
        return actor.look() if actor else Placed(PlacedState.DEAD, None, "Ray was started anew")

    def pid(self, worker_id: str, timeout_s: float) -> int:
        """Process id of a worker that is ready. Raises UnavailableError."""
        try:
            return int(ray.get(self._actors[worker_id].handle.pid.remote(), timeout=timeout_s))
        except ray.exceptions.RayError as error:
            raise UnavailableError(f"{worker_id} does not answer: {_first_line(error)}", retry_after_s=1.0) from error

    def stop(self, worker_id: str, drain_s: float) -> None:
        """See `WorkerPlacement.stop`. Also ends a detached worker that another launcher placed.

        One that does not answer yet has nothing to drain and is ended at once. Of a local Ray that ended nothing is
        asked, for it would not answer: its workers end with it.
        """
        if self.failure() is not None:
            self._actors.pop(worker_id, None)
            return
        actor = self._actors.pop(worker_id, None) or self._find(worker_id)
        if actor is None:
            return
        if actor.answers():
            try:
                ray.get(actor.handle.stop.remote(drain_s), timeout=drain_s + STOP_SLACK_S)
            except ray.exceptions.RayError as error:
                _log.warning("worker_stop_failed", worker_id=worker_id, reason=_first_line(error))
        self._end(worker_id, actor)

    def worker_ids(self) -> list[str]:
        """Workers that run in the cluster, whoever placed them."""
        names = (name for name in _answer(ray.util.list_named_actors) if name.startswith(_NAME_PREFIX))
        return sorted(name.removeprefix(_NAME_PREFIX) for name in names)

    def close(self) -> None:
        """Leaves the cluster; a local one ends, with everything in it. Idempotent."""
        self._actors.clear()
        ray.shutdown()
        if self._session is not None:
            self._session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _check_resources(self, spec: WorkerSpec) -> None:
        """A remote cluster may grow; a local one would let the worker wait for ever."""
        if self._session is None:
            return
        total = ray.cluster_resources()
        for name, needed in (("CPU", spec.num_cpus), ("GPU", spec.num_gpus)):
            if needed > total.get(name, 0.0):
                raise PreconditionError(
                    f"{spec.worker_id} needs {needed:g} {name}, the local Ray has {total.get(name, 0.0):g} in all"
                )

    def _find(self, worker_id: str) -> _Actor | None:
        try:
            return _Actor(ray.get_actor(_NAME_PREFIX + worker_id))
        except ValueError:  # there is none
            return None

    def _end(self, worker_id: str, actor: _Actor) -> None:
        ray.kill(actor.handle, no_restart=True)
        _wait(lambda: self.failure() is not None or worker_id not in self.worker_ids(), f"{worker_id} does not end")


class _Actor:
    """One placed actor, and the question to it that is under way."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self._asked: Any = None
        self._last = Placed(PlacedState.STARTING, None, "")

    def answers(self) -> bool:
        """Whether it answers within a second, with anything but the news of its death."""
        try:
            ray.get(self.handle.describe.remote(), timeout=_ANSWER_S)
        except ray.exceptions.RayError:
            return False
        return True

    def fingerprint(self) -> str:
        """Of what it was told; empty where it does not say so within a second, or is leaving."""
        try:
            return str(ray.get(self.handle.fingerprint.remote(), timeout=_ANSWER_S))
        except (ray.exceptions.RayError, AttributeError):  # an older worker has no such method
            return ""

    def look(self) -> Placed:
        """The answer to the last question, without waiting for the next."""
        if self._asked is None:
            self._asked = self.handle.describe.remote()
        ready, _ = ray.wait([self._asked], timeout=0)
        if ready:
            asked, self._asked = self._asked, None
            self._last = _placed(asked)
        return self._last


def _start_session(num_cpus: int) -> RaySession:
    if threading.current_thread() is not threading.main_thread():
        raise PreconditionError("Ray's processes end with the thread that starts them; start it from the main thread")
    session = RaySession()
    options = {
        "address": "local",
        "num_cpus": num_cpus,
        "include_dashboard": False,
        "object_store_memory": OBJECT_STORE_BYTES,
        "_temp_dir": str(session.folder),
        "_system_config": {"enable_worker_prestart": False, "prestart_worker_first_driver": False},
    }
    try:
        _init(options)
    except BaseException:
        session.close()
        raise
    return session


def _placed(answer: Any) -> Placed:
    try:
        return Placed(PlacedState.READY, ray.get(answer, timeout=0), "")
    except ray.exceptions.ActorUnavailableError as error:
        return Placed(PlacedState.STARTING, None, _first_line(error))
    except (ray.exceptions.ActorDiedError, ray.exceptions.RayTaskError) as error:
        return Placed(PlacedState.LEFT if _LEFT in str(error) else PlacedState.DEAD, None, _cause(error))
    except ray.exceptions.RayError as error:
        return Placed(PlacedState.STARTING, None, _first_line(error))


def _init(options: dict[str, Any]) -> None:
    set_ray_environment()
    on_main_thread = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR, **options)
    except (ray.exceptions.RayError, ConnectionError, RuntimeError, ValueError, OSError) as error:
        raise PreconditionError(f"Ray does not start: {_first_line(error)}") from error
    finally:
        if on_main_thread:
            signal.signal(signal.SIGTERM, handler)  # Ray installs one that ends this process in its own way


def _wait(condition: Callable[[], bool], complaint: str) -> None:
    give_up_s = time.monotonic() + KILL_TIMEOUT_S
    while not condition():
        if time.monotonic() > give_up_s:
            raise UnavailableError(f"{complaint} within {KILL_TIMEOUT_S:.0f} s", retry_after_s=1.0)
        time.sleep(_POLL_S)


def _answer(question: Callable[[], list[str]]) -> list[str]:
    """What Ray says. It has no deadline for this: where its GCS is ending it would wait for ten minutes."""
    answer: Future[list[str]] = Future()

    def ask() -> None:
        try:
            answer.set_result(question())
        except Exception as error:  # whoever waits for the answer is told
            answer.set_exception(error)

    threading.Thread(target=ask, name="ray-question", daemon=True).start()
    try:
        return answer.result(KILL_TIMEOUT_S)
    except TimeoutError:
        raise UnavailableError(f"Ray does not answer within {KILL_TIMEOUT_S:.0f} s", retry_after_s=1.0) from None


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _cause(error: BaseException) -> str:
    """The last line of what Ray tells, which is an exception's where a constructor failed: its sentence."""
    last = next((line.strip() for line in reversed(str(error).splitlines()) if line.strip()), type(error).__name__)
    return _EXCEPTION_NAME.sub("", last)
