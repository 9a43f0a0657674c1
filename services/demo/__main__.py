"""`python -m services.demo`, called by `make demo`."""

import sys

from services.demo.main import main

if __name__ == "__main__":
    sys.exit(main())
