"""Whether a file with a secret is for this process alone. Knows no secrets."""

from __future__ import annotations

import os
import stat


def is_private(status: os.stat_result) -> bool:
    """Whether only its owner may read it, or root gives it to this process by its group, as Kubernetes mounts it."""
    others = status.st_mode & (stat.S_IRWXO | stat.S_IWGRP | stat.S_IXGRP)
    by_group = bool(status.st_mode & stat.S_IRGRP)
    is_given = status.st_uid == 0 and os.geteuid() != 0 and status.st_gid in {os.getegid(), *os.getgroups()}
    return not others and (not by_group or is_given)
