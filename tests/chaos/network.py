"""A network of its own for each process of a cluster, all on one bridge, and links between two of them that are cut.

A cut link loses every packet silently in both directions, as a broken switch does: each side keeps sending to a
hardware address that nobody has. Needs root and `ip`.
"""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

_NOBODY = "02:00:00:00:de:ad"
_SUBNET = "10.231.{net}.{host}"


@dataclass(frozen=True, slots=True)
class Node:
    """One network namespace."""

    name: str
    namespace: str
    address: str

    @property
    def prefix(self) -> tuple[str, ...]:
        """Of a command that is to run in it."""
        return ("ip", "netns", "exec", self.namespace)


class Network:
    """Made by `running_network`."""

    def __init__(self, nodes: dict[str, Node]) -> None:
        self.nodes = nodes

    def cut(self, one: str, other: str) -> None:
        """From now on neither hears of the other."""
        for here, there in ((one, other), (other, one)):
            self._neighbour(here, there, "replace", "lladdr", _NOBODY, "nud", "permanent")

    def mend(self, one: str, other: str) -> None:
        """They hear of each other again."""
        for here, there in ((one, other), (other, one)):
            self._neighbour(here, there, "del")

    def _neighbour(self, here: str, there: str, verb: str, *rest: str) -> None:
        address = self.nodes[there].address
        _run("ip", "-n", self.nodes[here].namespace, "neigh", verb, address, *rest, "dev", "eth0")


@contextmanager
def running_network(names: Sequence[str]) -> Iterator[Network]:
    """A namespace for each name, all reachable from this machine's own; nothing is left afterwards."""
    net = secrets.randbelow(250)
    tag = f"sc{secrets.token_hex(3)}"
    bridge = f"{tag}b"
    with ExitStack() as undo:
        _run("ip", "link", "add", bridge, "type", "bridge")
        undo.callback(_run, "ip", "link", "del", bridge)
        _run("ip", "addr", "add", f"{_SUBNET.format(net=net, host=1)}/24", "dev", bridge)
        _run("ip", "link", "set", bridge, "up")
        nodes = {}
        for at, name in enumerate(names):
            node = Node(name, f"{tag}-{name}", _SUBNET.format(net=net, host=at + 10))
            _run("ip", "netns", "add", node.namespace)
            undo.callback(_run, "ip", "netns", "del", node.namespace)
            _connect(node, bridge, f"{tag}v{at}")
            nodes[name] = node
        yield Network(nodes)


def _connect(node: Node, bridge: str, link: str) -> None:
    _run("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", node.namespace)
    _run("ip", "link", "set", link, "master", bridge, "up")
    _run("ip", "-n", node.namespace, "addr", "add", f"{node.address}/24", "dev", "eth0")
    _run("ip", "-n", node.namespace, "link", "set", "eth0", "up")
    _run("ip", "-n", node.namespace, "link", "set", "lo", "up")


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)
