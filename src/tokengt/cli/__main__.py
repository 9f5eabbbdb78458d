"""``python -m tokengt.cli``."""

import sys

from tokengt.cli import main

if __name__ == "__main__":
    sys.exit(main())
