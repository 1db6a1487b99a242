"""`python -m pyhangtrace` is `hangtrace`."""

from pyhangtrace.cli.main import main

if __name__ == "__main__":
    main()
