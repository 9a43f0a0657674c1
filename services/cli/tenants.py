"""`stemcache tenants …`: tenants, their keys and quotas, through the admin port."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from services.cli import purge, quota
from services.cli.connection import add_admin_flags, admin_client
from services.cli.exit_codes import ExitCode
from services.cli.output import date_text, print_json, print_table
from services.client.admin_requests import USUAL_TERMS
from services.client.admin_results import ApiKey, PurgeReceipt, Tenant
from services.cluster.data_folder import write_private

Commands = argparse._SubParsersAction  # argparse has no public name for it


def add_command(commands: Commands[argparse.ArgumentParser]) -> None:
    """Adds the command to the parser."""
    parser = commands.add_parser("tenants", help="make, list and remove tenants and their keys")
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    quota.add_flags(_add_tenant_action(actions, "create", "make a tenant", create))
    quota_parser = _add_tenant_action(
        actions, "quota", "change or show what a tenant is guaranteed and may use", set_or_show
    )
    quota.add_flags(quota_parser)
    _add(actions, "list", "list all tenants", list_tenants)
    delete_parser = _add_tenant_action(actions, "delete", "remove a tenant, its keys and all that it cached", delete)
    delete_parser.add_argument("--yes", action="store_true", help="needed: it cannot be undone")
    _add_tenant_action(actions, "rotate", "make all that a tenant cached unreachable", rotate)
    purge.add_flags(
        _add_tenant_action(actions, "purge", "forget what a tenant has cached, or a part of it", purge_cache)
    )
    export = _add(actions, "export", "write all tenants and keys to a file", export_tenants)
    export.add_argument("file", type=Path, help="new file, mode 0600; its secrets lie under the master key")
    import_parser = _add(actions, "import", "read such a file", import_tenants)
    import_parser.add_argument("file", type=Path)
    _add_key_actions(actions)


def _add_key_actions(actions: Commands[argparse.ArgumentParser]) -> None:
    keys = actions.add_parser("keys", help="make, list and revoke keys of a tenant")
    key_actions = keys.add_subparsers(dest="key_action", required=True, metavar="ACTION")
    _add_tenant_action(key_actions, "create", "make a key and print it once", create_key)
    _add_tenant_action(key_actions, "list", "list keys without their secrets", list_keys)
    revoke = _add(key_actions, "revoke", "end a key", revoke_key)
    revoke.add_argument("key_id", help="public part of the key, as `keys list` shows it")


def _add(actions: Commands[argparse.ArgumentParser], name: str, text: str, run: object) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(name, help=text, description=text.capitalize() + ".")
    add_admin_flags(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)
    return parser


def _add_tenant_action(
    actions: Commands[argparse.ArgumentParser], name: str, text: str, run: object
) -> argparse.ArgumentParser:
    parser = _add(actions, name, text, run)
    parser.add_argument("tenant", help="name: lower case letters, digits and dashes")
    return parser


def create(args: argparse.Namespace) -> int:
    """Makes a tenant."""
    with admin_client(args) as client:
        tenant = client.create_tenant(args.tenant, quota.terms_of(args))
    if args.json:
        print_json(tenant)
    else:
        print(f"made tenant {tenant.name}; give it a key with: stemcache tenants keys create {tenant.name}")
    return ExitCode.OK


def list_tenants(args: argparse.Namespace) -> int:
    """Lists all tenants."""
    with admin_client(args) as client:
        tenants = client.list_tenants()
    if args.json:
        print_json(tenants)
    else:
        print_table(
            ("TENANT", "LIVE KEYS", *quota.HEADINGS, "MADE", "EPOCH SINCE", "UUID"),
            [_tenant_row(each) for each in tenants],
        )
    return ExitCode.OK


def set_or_show(args: argparse.Namespace) -> int:
    """Changes what was named, or shows everything where nothing was."""
    terms = quota.terms_of(args)
    with admin_client(args) as client:
        if terms == USUAL_TERMS:
            found = [each for each in client.list_tenants() if each.name == args.tenant]
        else:
            found = [client.set_quota(args.tenant, terms)]
    if not found:
        print(f"stemcache: error: there is no tenant {args.tenant!r}; `stemcache tenants list` shows", file=sys.stderr)
        return ExitCode.REFUSED
    if args.json:
        print_json(found[0])
    else:
        quota.print_quota(found[0])
    return ExitCode.OK


def delete(args: argparse.Namespace) -> int:
    """Removes a tenant."""
    if not args.yes:
        print(
            f"stemcache: error: deleting {args.tenant} ends its keys for good; repeat the command with --yes",
            file=sys.stderr,
        )
        return ExitCode.USAGE
    with admin_client(args) as client:
        receipt = client.delete_tenant(args.tenant)
    _say(args, f"removed tenant {args.tenant}")
    return _tell(args, receipt)


def rotate(args: argparse.Namespace) -> int:
    """Renews a tenant's epoch."""
    with admin_client(args) as client:
        rotated = client.rotate_epoch(args.tenant)
    if args.json:
        print_json(rotated)
        return ExitCode.OK
    tenant = rotated.tenant
    print(f"nothing that {tenant.name} cached before {date_text(tenant.epoch_unix_s)} can match again")
    return _tell(args, rotated.receipt)


def purge_cache(args: argparse.Namespace) -> int:
    """Forgets what a tenant has cached."""
    with admin_client(args) as client:
        receipt = client.purge_cache(args.tenant, purge.scope_of(args))
    return _tell(args, receipt)


def _tell(args: argparse.Namespace, receipt: PurgeReceipt) -> int:
    if args.json:
        print_json(receipt)
    else:
        purge.print_receipt(receipt)
    return ExitCode.OK


def export_tenants(args: argparse.Namespace) -> int:
    """Writes all tenants to a file."""
    if args.file.exists():
        print(f"stemcache: error: {args.file} exists; name a new file", file=sys.stderr)
        return ExitCode.REFUSED
    with admin_client(args) as client:
        document = client.export_tenants()
    write_private(args.file, document.decode("utf-8"))
    _say(args, f"wrote {args.file}; it can be read back under the same master key only")
    return ExitCode.OK


def import_tenants(args: argparse.Namespace) -> int:
    """Reads tenants from a file."""
    document = args.file.read_bytes()
    with admin_client(args) as client:
        counts = client.import_tenants(document)
    if args.json:
        print_json(counts)
    else:
        print(f"added or replaced {counts.num_tenants} tenants and {counts.num_keys} keys")
    return ExitCode.OK


def create_key(args: argparse.Namespace) -> int:
    """Makes a key: on standard output nothing but the key, so that it can be captured."""
    with admin_client(args) as client:
        new = client.create_api_key(args.tenant)
    if args.json:
        print_json(new)
    else:
        print(new.secret)
        print(f"key {new.key.key_id} of {args.tenant}: shown this once, only its hash is kept", file=sys.stderr)
    return ExitCode.OK


def list_keys(args: argparse.Namespace) -> int:
    """Lists the keys of a tenant."""
    with admin_client(args) as client:
        keys = client.list_api_keys(args.tenant)
    if args.json:
        print_json(keys)
    else:
        print_table(("KEY ID", "MADE", "STATE"), [_key_row(each) for each in keys])
    return ExitCode.OK


def revoke_key(args: argparse.Namespace) -> int:
    """Ends a key."""
    with admin_client(args) as client:
        client.revoke_api_key(args.key_id)
    _say(args, f"revoked key {args.key_id}")
    return ExitCode.OK


def _say(args: argparse.Namespace, text: str) -> None:
    if not args.json:
        print(text)


def _tenant_row(tenant: Tenant) -> tuple[str, ...]:
    made, since = date_text(tenant.create_unix_s), date_text(tenant.epoch_unix_s)
    return (tenant.name, str(tenant.num_live_keys), *quota.cells(tenant), made, since, tenant.uuid)


def _key_row(key: ApiKey) -> tuple[str, ...]:
    return (key.key_id, date_text(key.create_unix_s), "revoked" if key.revoked else "live")
