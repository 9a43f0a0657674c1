"""gRPC as its users see it, over the simulated network: channels, servers, calls, contexts.

The real stubs and servicers of the product run on it. A call is one request, any number of answers and a status; every
message is written and read as bytes, as on a real wire. A writer waits where its reader leaves too much unread.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import grpc

from tests.simulation.loop import Phase, Process, current_process
from tests.simulation.network import Network

CONNECT_S = 2.0
"""After that long an attempt to connect is given up."""

WINDOW = 8
"""Messages that may be unread."""

_UNAVAILABLE = grpc.StatusCode.UNAVAILABLE


def _error(code: grpc.StatusCode, details: str, trailers: Sequence[tuple[str, Any]] = ()) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*trailers), details)


class SimulatedServer:
    """In place of grpc.aio.server()."""

    def __init__(self, network: Network) -> None:
        owner = current_process()
        assert owner is not None, "a server is some process's"
        self.process: Process = owner
        self.handlers: dict[str, Any] = {}
        self.calls: dict[_Call, None] = {}
        self._network = network
        self._address = ""

    def add_generic_rpc_handlers(self, handlers: object) -> None:
        """They come by name too."""

    def add_registered_method_handlers(self, service: str, handlers: dict[str, Any]) -> None:
        self.handlers |= {f"/{service}/{name}": handler for name, handler in handlers.items()}

    def add_insecure_port(self, address: str) -> int:
        port = int(address.rpartition(":")[2]) or self._network.port()
        self._address = f"{address.rpartition(':')[0]}:{port}"
        return port

    async def start(self) -> None:
        self._network.servers[self._address] = self

    async def stop(self, grace: float | None) -> None:
        """Calls get `grace` to end."""
        if self._network.servers.get(self._address) is self:
            del self._network.servers[self._address]
        ends_s = self._network.loop.time() + (grace or 0.0)
        while self.calls and self._network.loop.time() < ends_s:
            await asyncio.sleep(0.05)
        for call in list(self.calls):
            call.break_client()
            call.break_server()


class SimulatedChannel:
    """In place of grpc.aio.insecure_channel()."""

    def __init__(self, network: Network, address: str) -> None:
        owner = current_process()
        assert owner is not None, "a channel is some process's"
        self.process: Process = owner
        self.network = network
        self.address = address
        self.connected_to: SimulatedServer | None = None

    def unary_stream(self, path: str, request_serializer: Any, response_deserializer: Any, **_: Any) -> Any:
        def start(request: Any, timeout: float | None = None, metadata: Any = None, **_: Any) -> _StreamCall:
            call = _Call(self, path, request_serializer(request), timeout, metadata)
            return _StreamCall(call, response_deserializer)

        return start

    def unary_unary(self, path: str, request_serializer: Any, response_deserializer: Any, **_: Any) -> Any:
        def start(request: Any, timeout: float | None = None, metadata: Any = None, **_: Any) -> Awaitable[Any]:
            return self._ask(path, request_serializer(request), response_deserializer, timeout, metadata)

        return start

    def stream_unary(self, path: str, *_: Any, **__: Any) -> Any:
        return lambda *_, **__: _not_simulated(path)

    def stream_stream(self, path: str, *_: Any, **__: Any) -> Any:
        return lambda *_, **__: _not_simulated(path)

    async def close(self, grace: float | None = None) -> None:
        """Ends nothing by itself: callers end their calls."""

    async def _ask(self, path: str, request: bytes, read: Any, timeout_s: float | None, metadata: Any) -> Any:
        call = _Call(self, path, request, timeout_s, metadata)
        try:
            message = await call.receive()
            if message is None:
                raise _error(grpc.StatusCode.INTERNAL, "no answer")
            return read(message)
        finally:
            call.cancel()


class _StreamCall:
    """The caller's half, as grpc.aio has it."""

    def __init__(self, call: _Call, read: Callable[[bytes], Any]) -> None:
        self._call = call
        self._read = read

    async def read(self) -> Any:
        try:
            message = await self._call.receive()
        except asyncio.CancelledError:
            self._call.cancel()
            raise
        return grpc.aio.EOF if message is None else self._read(message)

    def cancel(self) -> bool:
        return self._call.cancel()

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self._call.at_the_end(lambda: callback(self))

    async def __aiter__(self) -> AsyncIterator[Any]:
        while (message := await self.read()) is not grpc.aio.EOF:
            yield message


class _Call:
    """Both halves of one call."""

    def __init__(
        self, channel: SimulatedChannel, path: str, request: bytes, timeout_s: float | None, metadata: Any
    ) -> None:
        self.client = channel.process
        self.server: Process | None = None
        self._channel = channel
        self._network = channel.network
        self._loop = channel.network.loop
        self._path = path
        self._request = request
        self._metadata = tuple(metadata or ())
        self.deadline_s = None if timeout_s is None else self._loop.time() + timeout_s
        self._inbox: deque[bytes] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._error: BaseException | None = None
        self._is_done = False
        """On the client's side."""
        self._at_the_end: list[Callable[[], None]] = []
        self._is_broken = False
        """On the server's side; what arrives later is nobody's."""
        self._to_client_s = self._to_server_s = 0.0
        self.num_unread = 0
        self.room: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._server: SimulatedServer | None = None
        self._network.connections[self] = None
        if timeout_s is not None:
            self._loop.call_later(timeout_s, self._end, _error(grpc.StatusCode.DEADLINE_EXCEEDED, "deadline"))
        self._connect()

    # The client's half, run in the client's process or by the network.

    async def receive(self) -> bytes | None:
        """The next message, None at the end."""
        while not self._inbox:
            if self._error is not None:
                raise self._error
            if self._is_done:
                return None
            self._waiter = self._loop.create_future()
            await self._waiter
        self._network.carry(self.client.place, self._server_place, 0.0, self._note_read)
        return self._inbox.popleft()

    def cancel(self) -> bool:
        """Ends it."""
        if self._is_done:
            return False
        self._end(asyncio.CancelledError())
        self._to_server_s = self._network.carry(
            self.client.place, self._server_place, self._to_server_s, self.break_server
        )
        return True

    def at_the_end(self, callback: Callable[[], None]) -> None:
        """Calls `callback` when it is done on the client's side."""
        if self._is_done:
            callback()
        else:
            self._at_the_end.append(callback)

    def break_client(self) -> None:
        """See Connection."""
        self._channel.connected_to = None
        self._end(_error(_UNAVAILABLE, "connection lost"))

    def _end(self, error: BaseException | None) -> None:
        if self._is_done:
            return
        self._is_done, self._error = True, error
        for callback in self._at_the_end:
            callback()
        self._forget()
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _take(self, message: bytes) -> None:
        if not self._is_done:
            self._inbox.append(message)
            self._wake()

    # Connecting.

    @property
    def _server_place(self) -> str:
        return self.client.place if self.server is None else self.server.place

    def _connect(self) -> None:
        server = self._network.servers.get(self._channel.address)
        connected = self._channel.connected_to
        if isinstance(server, SimulatedServer) and server.process.phase is not Phase.DEAD:
            self.server, self._server = server.process, server
            is_open = connected is server
            is_silent = server.process.phase is Phase.STOPPED or self._network.is_cut(
                self.client.place, server.process.place
            )
            if is_silent and not is_open:
                self._loop.outside(CONNECT_S, self._end, _error(_UNAVAILABLE, "no connection"))
                return
            self._channel.connected_to = server
            self._to_server_s = self._network.carry(
                self.client.place, self.server.place, 0.0, lambda: self._arrive(server)
            )
        else:
            self._channel.connected_to = None
            self._loop.outside(0.001, self._end, _error(_UNAVAILABLE, "connection refused"))

    def _arrive(self, server: SimulatedServer) -> None:
        if server.process.phase is Phase.DEAD or self._network.servers.get(self._channel.address) is not server:
            self._loop.outside(0.001, self.break_client)
        else:
            server.process.call_soon(self._begin, server)

    # The server's half, run in the server's process.

    def _begin(self, server: SimulatedServer) -> None:
        if self._is_broken:
            return
        server.calls[self] = None
        self._task = server.process.spawn(self._serve(server), f"call {self._path}")

    async def _serve(self, server: SimulatedServer) -> None:
        context = _Context(self)
        try:
            handler = server.handlers.get(self._path)
            if handler is None:
                self.finish(_error(grpc.StatusCode.UNIMPLEMENTED, self._path))
                return
            request = handler.request_deserializer(self._request)
            async with asyncio.timeout(context.time_remaining()):
                await self._run(handler, request, context)
        except grpc.aio.AbortError:
            self.finish(context.error)
        except TimeoutError:
            self.finish(_error(grpc.StatusCode.DEADLINE_EXCEEDED, "deadline"))
        except asyncio.CancelledError:
            self.finish(_error(grpc.StatusCode.CANCELLED, "cancelled"))
            raise
        except Exception as error:
            self._network.trace.note(server.process.name, f"a servicer raised {error!r}")
            self.finish(_error(grpc.StatusCode.UNKNOWN, repr(error)))
        else:
            self.finish(None)
        finally:
            server.calls.pop(self, None)

    async def _run(self, handler: Any, request: Any, context: _Context) -> None:
        write = handler.response_serializer
        context.serialize = write
        if not handler.response_streaming:
            self.send(write(await handler.unary_unary(request, context)))
            return
        answers = handler.unary_stream(request, context)
        if hasattr(answers, "__aiter__"):
            async for answer in answers:
                await context.write(answer)
        else:
            await answers

    def send(self, message: bytes) -> None:
        """To the client."""
        assert self.server is not None
        self._to_client_s = self._network.carry(
            self.server.place, self.client.place, self._to_client_s, lambda: self._take(message)
        )

    def finish(self, error: BaseException | None) -> None:
        """The status follows the messages."""
        assert self.server is not None
        self._to_client_s = self._network.carry(
            self.server.place, self.client.place, self._to_client_s, lambda: self._end(error)
        )

    def break_server(self) -> None:
        """See Connection."""
        self._is_broken = True
        if self.server is not None and self.server.phase is not Phase.DEAD:
            self.server.call_soon(self._cancel_task)

    def _cancel_task(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _note_read(self) -> None:
        self.num_unread -= 1
        if self.room is not None and not self.room.done():
            self.room.set_result(None)

    def _forget(self) -> None:
        self._network.connections.pop(self, None)


class _Context:
    """What a servicer is given."""

    def __init__(self, call: _Call) -> None:
        self._call = call
        self.serialize: Callable[[Any], bytes]
        self.error: grpc.aio.AioRpcError | None = None

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return self._call._metadata

    def time_remaining(self) -> float | None:
        deadline_s = self._call.deadline_s
        return None if deadline_s is None else max(0.0, deadline_s - self._call._loop.time())

    async def write(self, message: Any) -> None:
        call = self._call
        while call.num_unread >= WINDOW:
            call.room = call._loop.create_future()
            await call.room
        call.num_unread += 1
        call.send(self.serialize(message))

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Any = ()) -> None:
        self.error = _error(code, details, tuple(trailing_metadata or ()))
        raise grpc.aio.AbortError


def _not_simulated(path: str) -> None:
    raise NotImplementedError(f"{path}: calls that send several messages are not simulated")
