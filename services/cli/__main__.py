"""The command `stemcache`, also as `python -m services.cli`. Loads the commands inside, where Ctrl-C ends it quietly."""

import sys

from services.cli.exit_codes import ExitCode


def main() -> int:
    """Exit status of the command line."""
    try:
        from services.cli.main import main as run  # half a second of imports

        return run()
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
