"""`python -m services.cluster`: a supervisor of workers, told by its environment (services/supervisor_settings.py)."""

from __future__ import annotations

import sys

from cache_store.errors import CancelledRequestError, StemcacheError
from cache_store.log_setup import log_as_json
from services.cluster.place import keep_workers
from services.cluster.stop_signals import StopSignals
from services.supervisor_settings import SupervisorSettings

BAD_SETTINGS = 2


def main() -> int:
    """Exit code 2, with a sentence on standard error, for settings or a cluster that cannot work."""
    log_as_json()
    try:
        with StopSignals() as stop:
            keep_workers(SupervisorSettings.from_environ(), stop)
    except CancelledRequestError:
        return 0
    except StemcacheError as error:
        sys.stderr.write(f"stemcache supervisor: {error}\n")
        return BAD_SETTINGS
    return 0


if __name__ == "__main__":
    sys.exit(main())
