"""The numbers of ``docs/scaling.md``, written into the page from the measurement of ``scaling.py``.

    python benchmarks/scaling_page.py [--results benchmarks/results/scaling-h200.json]

A test holds the page against the file, so that neither changes without the other.
"""

import argparse
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS, PAGE = ROOT / "benchmarks" / "results" / "scaling-h200.json", ROOT / "docs" / "scaling.md"
# What nobody measured here: one GPU has no neighbour. NVLink 4 moves 450 GB/s each way between H100s or H200s; what the
# ring of a collective gets of it is assumed to be two thirds, and in the worse case one third.
GB_PER_SECOND = (300, 150)
LATENCY_MS = 0.03
PAPER_STEPS = 1_000_000
GPUS = (1, 2, 4, 8)
NOT_MEASURED = "*Not measured yet: `benchmarks/scaling.py` on a GPU, then `benchmarks/scaling_page.py`.*"


def exchange_ms(gpus: int, gradient_bytes: int, gb_per_second: float) -> float:
    """A ring sends and receives 2 (N - 1) / N of the bytes on every GPU."""
    return 0.0 if gpus == 1 else LATENCY_MS + 2 * (gpus - 1) / gpus * gradient_bytes / (gb_per_second * 1e6)


def step_of(results: Mapping[str, Any], layout: str, graphs: int) -> Mapping[str, Any]:
    return next(row for row in results["steps"] if (row["layout"], row["graphs"]) == (layout, graphs))


def layouts(results: Mapping[str, Any]) -> list[str]:
    return list(dict.fromkeys(row["layout"] for row in results["steps"]))


def setting(results: Mapping[str, Any]) -> str:
    return (
        f"{results['device']}, torch {results['torch']}, commit {results['commit']}; {results['model']}, "
        f"{results['parameters'] / 1e6:.1f} million weights, {results['dtype']}"
    )


def steps_block(results: Mapping[str, Any]) -> str:
    """What was measured: the step of each share of the batch."""
    heads = ("Layout", "Graphs", "Tokens", "Step", "The host is busy for", "Kernels", "Launches", "Replays")
    rows = [
        (
            row["layout"],
            f"{row['graphs']:,}",
            f"{row['tokens']:,.0f}",
            f"{row['milliseconds']:.2f} ms",
            f"{row['host_milliseconds']:.2f} ms",
            f"{row['kernels']:,.0f}",
            f"{row['launches']:,.0f}",
            f"{row['replays']:,.0f}",
        )
        for row in results["steps"]
    ]
    exchanged = (
        f"The gradients are {results['gradient_bytes'] / 1e6:,.0f} MB. Summing them in a group of one process takes "
        f"{results['all_reduce_alone_ms']:.3f} ms, copying them on the device {results['copy_ms']:.3f} ms."
    )
    return f"{setting(results)}:\n\n{_markdown(heads, rows)}\n\n{exchanged}"


def parts_block(results: Mapping[str, Any]) -> str:
    """Where the time of the whole batch on one GPU goes."""
    names = layouts(results)
    steps = [step_of(results, layout, results["batch"]) for layout in names]
    rows = [
        (part, *(f"{step['breakdown'][part]:.2f} ms" for step in steps))
        for part in steps[0]["breakdown"]
        if any(step["breakdown"][part] for step in steps)
    ]
    rows.append(("**the step**", *(f"**{step['milliseconds']:.2f} ms**" for step in steps)))
    return _markdown(("Part", *names), rows)


def paper_block(results: Mapping[str, Any]) -> str:
    """What 2, 4 and 8 GPUs would take: the measured step of their share, and an exchange of gradients as assumed."""
    heads = (
        *("Layout", "GPUs", "Graphs on each", "Their step, measured", "Exchange, computed", "Step"),
        *("Graphs/s", "Times one GPU", "A million steps"),
    )
    rows = []
    for layout in layouts(results):
        whole = step_of(results, layout, results["batch"])
        alone = results["batch"] / whole["milliseconds"]
        for gpus in GPUS:
            rows.append(_projected(results, step_of(results, layout, results["batch"] // gpus), gpus, alone))
        rows.append(_projected(results, whole, GPUS[-1], alone))
    return _markdown(heads, rows)


def _projected(results: Mapping[str, Any], step: Mapping[str, Any], gpus: int, alone: float) -> tuple[str, ...]:
    """One line; ``alone`` is the rate of one GPU in graphs per millisecond. A range is between the two bandwidths."""
    exchanges = [exchange_ms(gpus, results["gradient_bytes"], speed) for speed in GB_PER_SECOND]
    steps = [step["milliseconds"] + took for took in exchanges]
    rates = [gpus * step["graphs"] / took for took in steps]
    whole = gpus * step["graphs"] == results["batch"]
    return (
        step["layout"],
        str(gpus),
        f"{step['graphs']:,}",
        f"{step['milliseconds']:.2f} ms",
        "" if gpus == 1 else f"{_range(exchanges, '.2f')} ms",
        f"{_range(steps, '.2f')} ms",
        _range([1e3 * rate for rate in reversed(rates)], ",.0f"),
        _range([rate / alone for rate in reversed(rates)], ".1f"),
        f"{_range([PAPER_STEPS * took / 3.6e6 for took in steps], '.1f')} h" if whole else "another schedule",
    )


def _range(values: list[float], form: str) -> str:
    texts = [format(value, form) for value in values]
    return texts[0] if texts[0] == texts[-1] else f"{texts[0]} to {texts[-1]}"


def _markdown(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (heads, ("---",) * len(heads), *rows))


BLOCKS = {"steps": steps_block, "parts": parts_block, "paper": paper_block}


def page_with(text: str, results: Mapping[str, Any] | None) -> str:
    """The page with the numbers of this measurement between its marks; without one, it says so there."""
    for name, block in BLOCKS.items():
        begin, end = f"<!-- scaling: {name} -->", f"<!-- end of {name} -->"
        if text.count(begin) != 1 or text.count(end) != 1:
            raise ValueError(f"{PAGE} has no place for {name}; expected {begin} and {end} in it, once each")
        new = f"{begin}\n{NOT_MEASURED if results is None else block(results)}\n{end}"
        text = re.sub(re.escape(begin) + ".*?" + re.escape(end), lambda _, new=new: new, text, flags=re.DOTALL)
    return text


def read(file: Path) -> dict[str, Any] | None:
    return json.loads(file.read_bytes()) if file.exists() else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    results = read(options.results)
    PAGE.write_text(page_with(PAGE.read_text(), results))
    says = "says that nothing was measured: there is no" if results is None else "has the numbers of"
    print(f"{PAGE.relative_to(ROOT)} {says} {options.results}")


if __name__ == "__main__":
    main()
