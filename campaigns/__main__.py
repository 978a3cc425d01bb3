"""`python -m campaigns`."""

import sys

from campaigns.run import main

if __name__ == "__main__":  # worker processes import this file too
    sys.exit(main())
