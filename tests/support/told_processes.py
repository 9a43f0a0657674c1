"""Whether the programs understand what chart, compose and image tell them: commands, flags and variables.

Paths stand for files of the machine where they will run; here each is a file of its own that fits.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path

import click
import ray.scripts.scripts

from cache_store.tls_files import Component
from services.certs.folder import CertificateFolder, Step
from services.cli.main import build_parser
from services.settings import RouterSettings
from services.supervisor_settings import SupervisorSettings
from services.tenants.master_key import create_file

ROOT = Path(__file__).parents[2]
_SETTINGS = ("services/settings.py", "services/supervisor_settings.py", "services/user_settings.py")
_PREFIX = re.compile(r'"(STEMCACHE_[A-Z_]+)"')


def known_variables() -> set[str]:
    """Those of ours that some program reads, and the files that may hold a URL instead."""
    names = {name for path in _SETTINGS for name in _PREFIX.findall((ROOT / path).read_text())}
    return names | {f"{name}_FILE" for name in names if name.endswith("REDIS_URL")}


def understood(command: Sequence[str], environment: Mapping[str, str], folder: Path) -> None:
    """Raises where a program would refuse what it is told."""
    unknown = {name for name in environment if name.startswith("STEMCACHE_")} - known_variables()
    assert not unknown, f"nobody reads {sorted(unknown)}"
    program = list(command)
    if program[:2] == ["python", "-m"]:
        spec = importlib.util.find_spec(program[2])
        assert spec is not None, program
        assert spec.submodule_search_locations is None or importlib.util.find_spec(f"{program[2]}.__main__"), program
        settings = {"services.router": RouterSettings, "services.cluster": SupervisorSettings}.get(program[2])
        if settings is not None:
            settings.from_environ(_here(environment, folder))
    elif program[0] == "stemcache":
        build_parser().parse_args(program[1:])
    elif program[:2] == ["ray", "start"]:
        with click.Context(ray.scripts.scripts.start) as context:
            ray.scripts.scripts.start.make_parser(context).parse_args(program[2:])
    elif program[:2] == ["bash", "-c"]:
        assert subprocess.run(["bash", "-n", "-c", *program[2:]]).returncode == 0, program
    elif program[0].startswith("--config.file="):
        assert (ROOT / "infra" / "monitoring" / program[0].rpartition("/")[2]).is_file(), program
    else:
        assert program[0] == "valkey-server", program


def _here(environment: Mapping[str, str], folder: Path) -> dict[str, str]:
    """The same variables, their paths being files of this machine."""
    folder.mkdir(parents=True, exist_ok=True)
    certificates = CertificateFolder(folder / "certs")
    certificates.write({}, timedelta(days=1), Step.KEEP)
    files = certificates.files(Component.ROUTER)
    (folder / "token").write_text("t" * 32)
    (folder / "url").write_text("rediss://role:pw@redis:6379/0\n")
    (folder / "key").unlink(missing_ok=True)
    create_file(folder / "key")
    stands_for = {
        "CERT_FILE": files.certificate,
        "KEY_FILE": files.key,
        "CA_FILE": files.authority,
        "TOKEN_FILE": folder / "token",
        "URL_FILE": folder / "url",
        "DATA_DIR": folder,
    }
    found = dict(environment)
    for name in environment:
        if name == "STEMCACHE_MASTER_KEY_FILE":
            found[name] = str(folder / "key")
        elif (ending := next((each for each in stands_for if name.endswith(each)), None)) is not None:
            found[name] = str(stands_for[ending])
        elif name == "STEMCACHE_MODELS" and environment[name]:
            found[name] = ",".join(f"{entry.partition('=')[0]}={folder}" for entry in environment[name].split(","))
    return found
