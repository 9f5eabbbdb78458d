"""All CPU benchmarks: writes ``benchmarks/results/cpu.json`` and the Markdown table made from it.

python benchmarks/run.py
"""

import json
import os
import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import batching
import laplacian
import prepare
import startup
import torch
import training_step
from molecules import DATA

RESULTS = Path(__file__).parent / "results"
COLUMNS = {
    "benchmark": "benchmark",
    "system": "system",
    "dataset": "molecules",
    "phase": "phase",
    "layout": "layout",
    "dropout": "dropout",
    "threads": "threads",
    "graphs_per_s": "graphs/s",
    "ratio": "ratio",
    "shape": "shape",
}
# How the table writes the number of a benchmark, by the key that it is stored under.
RATIOS = {
    "ratio_to_padded": "{:.2f}x padded's speed",
    "ratio_to_batched": "{:.1f}x our time",
    "ratio_to_select": "{:.1f}x select's time",
    "ratio_to_rdkit": "{:.2f}x RDKit's time on one core",
    "seconds": "{:.3f} s",
}


def table(rows: Sequence[dict[str, Any]]) -> str:
    """One Markdown table of all rows; a key that a row lacks is left blank."""
    lines = [list(COLUMNS.values()), ["---"] * len(COLUMNS)]
    lines += [[_cell(row, key) for key in COLUMNS] for row in rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def _cell(row: dict[str, Any], key: str) -> str:
    if key == "ratio":
        return next((text.format(row[name]) for name, text in RATIOS.items() if name in row), "")
    value = row.get(key)
    if key == "graphs_per_s" and value is not None:
        return f"{value:,.0f}"
    return "" if value is None else str(value)


def commit() -> str:
    """The checked-out commit, with a ``+`` when source files differ from it."""
    here = Path(__file__).parent

    def git(*arguments: str) -> str:
        run = subprocess.run(["git", "-C", str(here), *arguments], capture_output=True, text=True, check=False)
        return run.stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", "--", "../src", ".")
    return (git("rev-parse", "--short", "HEAD") or "unknown") + ("+" if changed else "")


def device() -> str:
    info = Path("/proc/cpuinfo")
    names = (
        [line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
        if info.exists()
        else []
    )
    return f"{names[0] if names else platform.processor() or platform.machine()}, torch {torch.__version__}"


def main() -> None:
    if DATA.exists():
        os.environ.setdefault("TOKENGT_DATA", str(DATA))
    stamp = {"device": device(), "commit": commit()}
    rows = []
    for module in (startup, laplacian, training_step, batching, prepare):
        print(f"measuring {module.__name__} ...", flush=True)
        rows += [row | stamp for row in module.measure()]
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "cpu.json").write_text(json.dumps(rows, indent=1) + "\n")
    text = table(json.loads((RESULTS / "cpu.json").read_text()))
    (RESULTS / "cpu.md").write_text(f"{stamp['device']}, commit {stamp['commit']}\n\n{text}")
    print(text)


if __name__ == "__main__":
    main()
