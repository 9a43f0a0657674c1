"""The command `stemcache`, also as `python -m services.cli`. Commands load inside, so that Ctrl-C is quiet then too."""

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
