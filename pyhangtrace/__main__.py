"""`python -m pyhangtrace`."""

import sys

from pyhangtrace.cli.entry import start

if __name__ == "__main__":
    sys.exit(start())
