"""`python -m neada`."""

import sys

from neada.cli import main

if __name__ == "__main__":
    sys.exit(main())
