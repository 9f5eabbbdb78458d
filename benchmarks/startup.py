"""How long a person waits: ``import tokengt`` beyond ``import torch``, and ``tokengt --help``.

python benchmarks/startup.py
"""

import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

REPEATS = 7
IMPORT = (
    "import time, torch; start = time.perf_counter(); from tokengt import Graph, GraphBatch, TokenGT, TokenGTConfig; "
    "print(time.perf_counter() - start)"
)


def import_seconds() -> float:
    done = subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True, check=True)
    return float(done.stdout)


def help_seconds() -> float:
    start = time.perf_counter()
    subprocess.run([str(Path(sys.executable).parent / "tokengt"), "--help"], capture_output=True, check=True)
    return time.perf_counter() - start


def measure() -> list[dict[str, Any]]:
    calls = {"import tokengt, beyond torch": import_seconds, "tokengt --help": help_seconds}
    return [
        {"benchmark": "startup", "system": name, "seconds": statistics.median(call() for _ in range(REPEATS))}
        for name, call in calls.items()
    ]


def main() -> None:
    for row in measure():
        print(f"{row['system']:32s}{row['seconds']:7.3f} s")


if __name__ == "__main__":
    main()
