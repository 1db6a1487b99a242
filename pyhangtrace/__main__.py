"""`python -m pyhangtrace` is `hangtrace`."""

import sys

from pyhangtrace.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
