"""The network between processes: delays, lines that are cut, connections that break.

What is sent on one connection arrives in order, or not at all. A line that is cut holds what is sent, as TCP does, and
lets it go when it heals. Whoever hears nothing from the other end for as long as a keepalive lasts takes the connection
for broken. Knows no messages.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Protocol

from tests.simulation.loop import Phase, Process, VirtualLoop
from tests.simulation.trace import Trace

MEAN_DELAY_S = 0.0008
IN_ORDER_S = 1e-6
"""Between two messages of one connection, at least."""

HICCUP_RATE = 0.01
"""Part of what is sent that takes much longer."""

CLIENT_KEEPALIVE_S = 8.0
SERVER_KEEPALIVE_S = 15.0


class Connection(Protocol):
    """A call that is open between two processes."""

    @property
    def client(self) -> Process: ...

    @property
    def server(self) -> Process | None: ...

    def break_client(self) -> None:
        """The client hears that the connection is gone."""
        ...

    def break_server(self) -> None:
        """So does the server."""
        ...


class Network:
    """Of one run."""

    def __init__(self, loop: VirtualLoop, seed: int, trace: Trace) -> None:
        self.loop = loop
        self.trace = trace
        self.rng = random.Random(f"network/{seed}")
        self.servers: dict[str, object] = {}
        """What listens, by address."""
        self.connections: dict[Connection, None] = {}
        self._next_port = 1
        self._cut: dict[frozenset[str], float] = {}
        """Since when."""
        self._held: dict[frozenset[str], list[Callable[[], None]]] = {}
        self._slow: dict[frozenset[str], float] = {}

    def port(self) -> int:
        """A free one."""
        self._next_port += 1
        return self._next_port

    def delay_s(self, one: str, other: str) -> float:
        """Of one message."""
        seconds = 0.0002 + self.rng.expovariate(1 / MEAN_DELAY_S)
        if self._slow:
            seconds *= self._slow.get(frozenset((one, other)), 1.0)
        return seconds + self.rng.uniform(0.01, 0.3) if self.rng.random() < HICCUP_RATE else seconds

    def is_cut(self, one: str, other: str) -> bool:
        """Whether nothing goes through."""
        return frozenset((one, other)) in self._cut

    def cut(self, one: str, other: str) -> None:
        """Cuts a line."""
        line = frozenset((one, other))
        if line in self._cut:
            return
        since_s = self._cut[line] = self.loop.time()
        self.loop.outside(CLIENT_KEEPALIVE_S, self._lose_cut, line, since_s, True)
        self.loop.outside(SERVER_KEEPALIVE_S, self._lose_cut, line, since_s, False)

    def heal(self, one: str, other: str) -> None:
        """Mends it; what was sent meanwhile arrives."""
        line = frozenset((one, other))
        self._cut.pop(line, None)
        for arrive in self._held.pop(line, []):
            self.loop.outside(0.0, arrive)

    def slow_down(self, one: str, other: str, factor: float) -> None:
        """Everything takes `factor` times as long; 1 ends it."""
        self._slow[frozenset((one, other))] = factor
        if factor == 1.0:
            del self._slow[frozenset((one, other))]

    def carry(self, one: str, other: str, not_before_s: float, arrive: Callable[[], None]) -> float:
        """Sends something that arrives by `arrive`; when it will, if nothing comes between."""
        at_s = max(not_before_s + IN_ORDER_S, self.loop.time() + self.delay_s(one, other))
        self.loop.outside(at_s - self.loop.time(), self._arrive, frozenset((one, other)), arrive)
        return at_s

    def reset(self, one: str, other: str) -> None:
        """Breaks all connections between two places."""
        for each in self._between(frozenset((one, other))):
            each.break_client()
            each.break_server()

    def note_killed(self, process: Process, is_noticed: bool) -> None:
        """The other ends of its connections hear of it; at once, or by keepalives where the machine is gone too."""
        for each in list(self.connections):
            if each.server is process:
                delay_s = self.delay_s(process.place, each.client.place) if is_noticed else CLIENT_KEEPALIVE_S
                self.loop.outside(delay_s, each.break_client)
            elif each.client is process:
                self.loop.outside(0.001 if is_noticed else SERVER_KEEPALIVE_S, each.break_server)

    def note_stopped(self, process: Process, seconds: float) -> None:
        """It will answer nothing for so long."""
        for each in list(self.connections):
            if each.server is process and seconds > CLIENT_KEEPALIVE_S:
                self.loop.outside(CLIENT_KEEPALIVE_S, self._lose_stopped, each, process)
            elif each.client is process and seconds > SERVER_KEEPALIVE_S:
                self.loop.outside(SERVER_KEEPALIVE_S, self._lose_stopped, each, process)

    def _arrive(self, line: frozenset[str], arrive: Callable[[], None]) -> None:
        if line in self._cut:
            self._held.setdefault(line, []).append(arrive)
        else:
            arrive()

    def _lose_cut(self, line: frozenset[str], since_s: float, is_client: bool) -> None:
        if self._cut.get(line) != since_s:
            return
        for each in self._between(line):
            if is_client:
                each.break_client()
                self.carry(*line, 0.0, each.break_server)  # closed connections are heard of when the line heals
            else:
                each.break_server()

    def _lose_stopped(self, connection: Connection, process: Process) -> None:
        if process.phase is Phase.STOPPED and connection in self.connections:
            connection.break_client()
            connection.break_server()

    def _between(self, line: frozenset[str]) -> list[Connection]:
        return [
            each
            for each in self.connections
            if each.server is not None and frozenset((each.client.place, each.server.place)) == line
        ]
