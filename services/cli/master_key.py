"""`stemcache master-key`: exchanges the master key in its file, a step at a time. Talks to nobody."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from enum import StrEnum
from pathlib import Path

from cache_store.errors import InvalidRequestError, PreconditionError
from services.cli.exit_codes import ExitCode
from services.cluster.data_folder import write_private
from services.tenants.master_key import MasterKey, from_file, generate, to_text

OTHER_SECRETS = frozenset(["admin-token", "admin.token", "metrics-token", "ray-token", "auth_token"])
"""Names of files with tokens: older ones look like a master key."""


class Step(StrEnum):
    """After each one every router and every supervisor needs the file, and a restart, one after the other."""

    ANNOUNCE = "announce"
    """A new key is believed."""
    SWITCH = "switch"
    """It is used, the old one is still believed."""
    RETIRE = "retire"
    """The old one is nothing any more, and lies in a file beside."""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command to the parser."""
    parser = commands.add_parser("master-key", help="exchange the master key, a step at a time")
    parser.add_argument("file", type=Path, metavar="FILE", help="where it lies")
    parser.add_argument(
        "--step",
        type=Step,
        choices=[*Step],
        help="announce, then switch, then retire; after each, restart all routers, then all supervisors, with the file",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Changes the file, and names the keys in it by their ids."""
    file: Path = args.file.resolve()  # a link stays one
    if not OTHER_SECRETS.isdisjoint((args.file.name, file.name)):
        raise InvalidRequestError(
            "file", f"{args.file} is not where a master key lies, but another secret; nothing done"
        )
    before = master = from_file(file)
    if args.step is not None:
        master = after(before, args.step)
        if args.step is Step.RETIRE and before.other is not None:
            kept = _keep(before.other, file)
            print(f"retired:  {before.other.key_id}, kept in {kept}: what is still under it opens with nothing else.")
            print("          Remove that file when all routers have started without it and no export needs it.")
        _write(file, master, file)
    print(f"in use:   {master.key_id}")
    if master.other is not None:
        print(f"believed: {master.other.key_id}")
    return ExitCode.OK


def _keep(retired: MasterKey, file: Path) -> Path:
    """Writes it beside. Raises PreconditionError where another one lies there, which may be needed yet."""
    kept = file.with_name(f"{file.name}.retired")
    if kept.exists() and (there := from_file(kept)).key_id != retired.key_id:
        raise PreconditionError(
            f"{kept} still has key {there.key_id}, which was retired before; when nothing needs it, remove that file, "
            "else move it elsewhere; nothing done"
        )
    _write(kept, retired, file)
    return kept


def _write(path: Path, master: MasterKey, like: Path) -> None:
    """For whom `like` belongs to."""
    owner = like.stat()
    write_private(path, to_text(master))
    if os.geteuid() == 0:
        os.chown(path, owner.st_uid, owner.st_gid)


def after(master: MasterKey, step: Step) -> MasterKey:
    """What stands in the file after a step. Raises PreconditionError where it is not the turn of that step."""
    match step, master.other:
        case Step.ANNOUNCE, None:
            return replace(master, other=generate())
        case Step.SWITCH, MasterKey() as other:
            return MasterKey(other.raw, MasterKey(master.raw))
        case Step.RETIRE, MasterKey():
            return MasterKey(master.raw)
        case Step.ANNOUNCE, _:
            raise PreconditionError("a second key is announced already; the next step is switch, or retire after that")
    raise PreconditionError("there is no second key; the first step is announce")
