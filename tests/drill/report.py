"""The counts of a drill: one JSON, and a table in ``docs/reliability.md`` between two marks."""

import json
import re
import sys
from pathlib import Path
from typing import Any

from tests.drill.campaigns import CAMPAIGNS
from tests.drill.oracle import KINDS

ROOT = Path(__file__).parents[2]
RESULTS, PAGE = ROOT / "results" / "drill.json", ROOT / "docs" / "reliability.md"
_BEGIN, _END = "<!-- drill -->", "<!-- end of drill -->"


def gathered(folder: Path) -> dict[str, Any]:
    """The counts of all slices under ``folder``, summed by campaign."""
    parts: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.glob("*.json")):
        slice_counts = json.loads(path.read_bytes())
        part = parts.setdefault(
            slice_counts["campaign"], {"cases": 0, "calls": 0, "kills": 0, "faults": dict.fromkeys(KINDS, 0)}
        )
        for name in ("cases", "calls", "kills"):
            part[name] += slice_counts[name]
        for kind in KINDS:
            part["faults"][kind] += slice_counts["faults"][kind]
    return {name: parts[name] for name in CAMPAIGNS if name in parts}


def table(parts: dict[str, Any]) -> str:
    heads = ("calls", "kills", *KINDS)
    lines = ["| Hostile to us | " + " | ".join(heads) + " |", "|---" * (1 + len(heads)) + "|"]
    rows = {CAMPAIGNS[name].what: {**part, **part["faults"]} for name, part in parts.items()}
    rows["**all**"] = {head: sum(row[head] for row in rows.values()) for head in heads}
    lines += [f"| {what} | " + " | ".join(f"{row[head]:,}" for head in heads) + " |" for what, row in rows.items()]
    return "\n".join(lines)


def page_with(text: str, parts: dict[str, Any]) -> str:
    """The page with the table of these counts in it."""
    new = f"{_BEGIN}\n{table(parts)}\n{_END}"
    return re.sub(re.escape(_BEGIN) + ".*" + re.escape(_END), lambda _: new, text, flags=re.DOTALL)


def main() -> None:
    parts = gathered(Path(sys.argv[1]))
    RESULTS.write_text(json.dumps(parts, indent=1) + "\n")
    PAGE.write_text(page_with(PAGE.read_text(), parts))
    print(table(parts))


if __name__ == "__main__":
    main()
