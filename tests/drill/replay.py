"""Plays single cases again and says what is wrong: ``python -m tests.drill.replay tables 17 18``."""

import sys
import tempfile
from pathlib import Path

from tests.drill.calls import Command
from tests.drill.campaigns import run_cases
from tests.drill.workshop import Workshop


def main() -> None:
    name, *numbers = sys.argv[1:]
    home = Path(tempfile.mkdtemp(prefix="drill-"))
    with Command() as command:
        outcome = run_cases(name, map(int, numbers), home, Workshop(home / "shop", command))
    print("\n".join(map(str, outcome.faults)) or "no fault")
    print(f"folders of faults are kept in {home}")


if __name__ == "__main__":
    main()
