"""``python -m tokengt``: the same as the command ``tokengt``."""

import sys

from tokengt.cli import main

if __name__ == "__main__":
    sys.exit(main())
