"""Containers without an engine: a process with its own network, its own root that it cannot write to, and no rights.

The root is an overlay of this machine's, read-only, with tmpfs and bind mounts where a container has volumes. The user
is 10001, without capabilities. Needs root, `ip` and overlayfs.
"""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
USER = 10001
_BIN = Path(sys.executable).parent
_NO_RIGHTS = "--bounding-set -all --inh-caps -all"


NOT_HERE = "containers by hand need root, ip and overlayfs"


def can_run() -> bool:
    """Whether this machine lets us make one."""
    name = f"sd{secrets.token_hex(4)}"
    overlay = 'd=$(mktemp -d) && mount -t tmpfs t "$d" && mkdir "$d/u" "$d/w" "$d/r" && mount -t overlay o -o '
    overlay += 'lowerdir=/,upperdir="$d/u",workdir="$d/w" "$d/r"; s=$?; umount -R "$d" && rmdir "$d"; exit $s'
    try:
        for command in (
            ["ip", "netns", "add", name],
            ["ip", "netns", "exec", name, "unshare", "-m", "--propagation", "private", "sh", "-c", overlay],
        ):
            if subprocess.run(command, capture_output=True).returncode:
                return False
    except FileNotFoundError:
        return False
    finally:
        if shutil.which("ip"):
            subprocess.run(["ip", "netns", "del", name], capture_output=True)
    return True


@dataclass(frozen=True)
class Bind:
    """What of this machine a container sees where."""

    source: Path
    target: str


@dataclass(frozen=True)
class Image:
    """How a container is made."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    networks: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Network to the names that others there find it under."""
    binds: Sequence[Bind] = ()
    scratch: Sequence[str] = ("/var/lib/stemcache", "/var/cache/stemcache")
    """Folders that are its own, empty, gone with it."""


class Container:
    """One that was made. `start` may be called again after `stop`."""

    def __init__(self, image: Image, namespace: str, addresses: Mapping[str, str], folder: Path) -> None:
        self.image = image
        self.namespace = namespace
        self.addresses = addresses
        """By network."""
        self.log = folder / f"{image.name}.log"
        self._script = folder / f"{image.name}.sh"
        self._hosts = folder / "hosts"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Begins its command."""
        self._script.write_text(self._lines(self.image.command))
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._inside(self._script), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def run(
        self, command: Sequence[str], timeout_s: float = 60.0, environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Another command in a container like this one: same network, same files."""
        script = self._script.with_name(f"{self.image.name}-{secrets.token_hex(4)}.sh")
        script.write_text(self._lines(command, environment or {}))
        return subprocess.run(self._inside(script), capture_output=True, text=True, timeout=timeout_s)

    def popen(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        """The same for one that runs on."""
        script = self._script.with_name(f"{self.image.name}-{secrets.token_hex(4)}.sh")
        script.write_text(self._lines(command, environment or {}))
        return subprocess.Popen(
            self._inside(script), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )

    def stop(self, grace_s: float = 60.0) -> int:
        """SIGTERM to the container's first process, as an engine does; what does not end then is killed. Its status."""
        process, self._process = self._process, None
        if process is None:
            return 0
        process.send_signal(signal.SIGTERM)
        try:
            return process.wait(grace_s)
        finally:
            self.kill_all()
            process.wait(10)

    def kill_all(self) -> None:
        """Ends whatever still runs in its network."""
        pids = subprocess.run(["ip", "netns", "pids", self.namespace], capture_output=True, text=True).stdout.split()
        for pid in pids:
            try:
                os.kill(int(pid), signal.SIGKILL)
            except ProcessLookupError:
                continue

    @property
    def pids(self) -> list[int]:
        """Of its processes."""
        out = subprocess.run(["ip", "netns", "pids", self.namespace], capture_output=True, text=True, check=True).stdout
        return [int(pid) for pid in out.split()]

    @property
    def status(self) -> int | None:
        """Of its command; None while it runs."""
        return self._process.poll() if self._process else None

    def _inside(self, script: Path) -> list[str]:
        return [
            "ip",
            "netns",
            "exec",
            self.namespace,
            "unshare",
            "-m",
            "-u",
            "--propagation",
            "private",
            "sh",
            str(script),
        ]

    def _lines(self, command: Sequence[str], more: Mapping[str, str] | None = None) -> str:
        image = self.image
        environment = {
            "PATH": f"{_BIN}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            "PYTHONPATH": f"{ROOT}:{ROOT / 'proto'}",
            "PYTHONDONTWRITEBYTECODE": "1",
            "HOME": "/var/lib/stemcache",
            "LANG": "C.UTF-8",
            **image.environment,
            **(more or {}),
        }
        lines = [
            "set -e",
            f"hostname {image.name}",
            f"b=$(mktemp -d -p {shlex.quote(str(self._script.parent))})",
            'mount -t tmpfs tmpfs "$b"; mkdir "$b/u" "$b/w" "$b/r"; r="$b/r"',
            'mount -t overlay overlay -o lowerdir=/,upperdir="$b/u",workdir="$b/w" "$r"',
            'chmod 755 "$r/root"',  # where this machine's Python may lie
            'mount --rbind /dev "$r/dev"; mount -t proc proc "$r/proc"',
            'mount -t tmpfs -o mode=1777 tmpfs "$r/tmp"; mount -t tmpfs -o mode=1777,size=256m tmpfs "$r/dev/shm"',
            'mount -t tmpfs -o mode=755 tmpfs "$r/run"',
            f'cp {shlex.quote(str(self._hosts))} "$r/etc/hosts"',
        ]
        for part in (ROOT, Path(sys.prefix), Path(sys.base_prefix)):
            is_hidden = part.is_relative_to("/tmp") or part.is_relative_to("/run")
            if is_hidden or part.stat().st_dev != Path("/").stat().st_dev:  # an overlay has one file system
                lines.append(f'mkdir -p "$r{part}"; mount --rbind {shlex.quote(str(part))} "$r{part}"')
        for folder in image.scratch:
            lines.append(f'mkdir -p "$r{folder}"; mount -t tmpfs -o uid={USER},gid={USER},mode=700 tmpfs "$r{folder}"')
        for bind in image.binds:
            source = shlex.quote(str(bind.source))
            make = (
                f'mkdir -p "$r{bind.target}"'
                if bind.source.is_dir()
                else (f'mkdir -p "$(dirname "$r{bind.target}")"; touch "$r{bind.target}"')
            )
            lines.append(f'{make}; mount --bind {source} "$r{bind.target}"')
        pairs = " ".join(shlex.quote(f"{name}={value}") for name, value in environment.items())
        drop = (
            f"setpriv --reuid {USER} --regid {USER} --clear-groups --no-new-privs --bounding-set -all --inh-caps -all"
        )
        lines += [
            'mount -o remount,ro "$r"',
            f'exec env -i {pairs} chroot "$r" {drop} sh -c \'cd /tmp && exec "$@"\' sh {shlex.join(command)}',
        ]
        return "\n".join(lines) + "\n"


@contextmanager
def running_containers(images: Sequence[Image]) -> Iterator[dict[str, Container]]:
    """Networks and containers, not started yet; at the end everything is ended and removed."""
    tag = f"sd{secrets.token_hex(3)}"
    names = sorted({network for image in images for network in image.networks})
    subnets = {name: f"10.{200 + at}.{secrets.randbelow(250)}" for at, name in enumerate(names)}
    with ExitStack() as undo:
        folder = Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="sc-containers-")))
        folder.chmod(0o755)
        for at in range(len(names)):
            _run("ip", "link", "add", f"{tag}b{at}", "type", "bridge")
            undo.callback(_run, "ip", "link", "del", f"{tag}b{at}")
            _run("ip", "link", "set", f"{tag}b{at}", "up")
        made: dict[str, Container] = {}
        hosts = ["127.0.0.1 localhost"]
        for at, image in enumerate(images):
            namespace = f"{tag}-{at}"
            _run("ip", "netns", "add", namespace)
            undo.callback(_run, "ip", "netns", "del", namespace)
            _run("ip", "-n", namespace, "link", "set", "lo", "up")
            addresses = {}
            for card, network in enumerate(image.networks):
                address = addresses[network] = f"{subnets[network]}.{10 + at}"
                link = f"{tag}v{at}{card}"
                _run("ip", "link", "add", link, "type", "veth", "peer", "name", f"eth{card}", "netns", namespace)
                _run("ip", "link", "set", link, "master", f"{tag}b{names.index(network)}", "up")
                _run("ip", "-n", namespace, "addr", "add", f"{address}/24", "dev", f"eth{card}")
                _run("ip", "-n", namespace, "link", "set", f"eth{card}", "up")
            container = made[image.name] = Container(image, namespace, addresses, folder)
            undo.callback(container.kill_all)
            hosts += _host_lines(image, addresses)
        (folder / "hosts").write_text("\n".join(hosts) + "\n")
        yield made


def _host_lines(image: Image, addresses: Mapping[str, str]) -> list[str]:
    """A name that is found in two networks is that of the last one, where a caller from outside comes from."""
    by_name = {name: addresses[network] for network, found in image.networks.items() for name in found}
    return [f"{address} {name}" for name, address in by_name.items()]


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)
